package verify

// want asks at once for records that the appends are judged by, so that few rounds of questions are
// needed. What it leaves out is asked for by the judgement itself.
func (j *ledgerJudge) want() {
	for i := range j.appends {
		for _, key := range j.wanted(&j.appends[i]) {
			j.ground(key)
		}
	}
}

func (j *ledgerJudge) wanted(told *toldAppend) [][]byte {
	signed, err := DecodeSigned(told.Signed)
	if err != nil {
		return nil
	}
	id := j.ledger
	keys := [][]byte{id.MemberKey(signed.Member)}
	if signed.Agent != nil {
		keys = append(keys, id.MemberKey(*signed.Agent))
	}
	for _, leaf := range told.leaves {
		for _, clue := range leaf.Clues {
			keys = append(keys, id.clueKey(clue.Clue))
		}
	}
	for _, condition := range signed.Conditions {
		if condition.OfClue {
			keys = append(keys, id.clueKey(condition.Clue))
		}
	}
	if order, is := j.orderOf(told); is {
		keys = append(keys, id.wantedByOrder(order, signed.Member)...)
	}
	if told.kind() == JournalMembers {
		keys = append(keys, id.wantedByChanges(told.envelope)...)
	}
	return keys
}

func (l LedgerID) wantedByOrder(order *Order, author MemberID) [][]byte {
	keys := [][]byte{l.FoundingKey(), l.PurgeKey()}
	for _, approval := range order.Approvals {
		keys = append(keys, l.MemberKey(approval.Member))
	}
	for _, target := range order.Targets {
		keys = append(keys, l.LeafKey(target.JSN), l.MarkKey(target.JSN))
		keys = append(keys, l.RetainedKey(target.JSN))
	}
	if purge := order.Purge; purge != nil {
		keys = append(keys, l.LeafKey(purge.Before))
		for number := range uint64(purge.Authors) + 1 {
			keys = append(keys, l.AuthorKey(number+1))
		}
		for _, absent := range purge.Absent {
			keys = append(keys, l.MemberKey(absent.Member), l.LeafKey(absent.Revocation))
		}
	}
	if retain := order.Retain; retain != nil {
		keys = append(keys, l.retainsKey(author))
		for _, jsn := range retain.Journals {
			keys = append(keys, l.LeafKey(jsn), l.RetainedKey(jsn))
		}
	}
	if sweep := order.Sweep; sweep != nil {
		for jsn := sweep.From; jsn < sweep.To; jsn++ {
			keys = append(keys, l.LeafKey(jsn), l.RetainedKey(jsn))
		}
	}
	return keys
}

func (l LedgerID) wantedByChanges(encoded []byte) [][]byte {
	envelope, err := DecodeEnvelope(encoded)
	if err != nil {
		return nil
	}
	changes, err := DecodeMemberChanges(envelope.Payload)
	if err != nil {
		return nil
	}
	keys := [][]byte{l.FoundingKey()}
	for _, change := range changes {
		switch change.Kind {
		case ChangeJoin, ChangeAgent:
			keys = append(keys, l.MemberKey(MemberIDOf(change.Grant.Name)), l.publicKeyKey(change.Grant.Key))
		case ChangeKey:
			keys = append(keys, l.MemberKey(change.Member), l.publicKeyKey(change.Key))
		default:
			keys = append(keys, l.MemberKey(change.Member))
		}
	}
	return keys
}
