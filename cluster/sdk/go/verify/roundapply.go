package verify

import (
	"bytes"
	"slices"
)

// found judges the founding of a ledger, and applies it.
func (r *Round) found(p *parsedRequest) (*Appended, error) {
	existing, err := r.ledger(p.id)
	if err != nil {
		return nil, err
	}
	if existing != nil || r.get(LedgerNameKey(p.founding.Name)) != nil {
		return nil, RefusedName
	}
	at := slices.IndexFunc(p.founding.Members, func(g Grant) bool { return MemberIDOf(g.Name) == p.Member })
	if at < 0 {
		return nil, RefusedMember
	}
	author := p.founding.Members[at]
	switch {
	case !verifySignature(author.Key, p.bytes, p.signature[:]):
		return nil, RefusedSignature
	case author.Roles&RoleOwner == 0:
		return nil, RefusedRole
	case p.Number != 1:
		return nil, RefusedLane
	}
	if err := r.checkConditions(p, 0); err != nil {
		return nil, err
	}
	ledger := newRoundLedger(&ledgerHead{})
	r.ledgers[p.id] = ledger
	var keys []newKey
	for _, g := range p.founding.Members {
		id := MemberIDOf(g.Name)
		ledger.members[id] = &Member{Name: g.Name, Roles: g.Roles, Keys: []MemberKey{{Key: g.Key}}}
		ledger.changed[id] = true
		keys = append(keys, newKey{key: g.Key, member: id})
	}
	return r.applied(p, ledger, author.Key, keys)
}

// applied makes the records of a request that is not refused any more.
func (r *Round) applied(p *parsedRequest, ledger *roundLedger, key PublicKey, keys []newKey) (*Appended, error) {
	result := &Appended{Ledger: p.id, FirstJSN: ledger.head.size}
	put := func(key, value []byte) {
		result.Records = append(result.Records, PutRecord{Key: key, Value: value})
		r.puts[string(key)] = value
	}
	clues := make(map[Digest]*clueRecord)
	if p.effect != nil {
		clues = p.effect.clues
	}
	var leaves []Digest
	for i, item := range p.items {
		leaf, err := r.leaf(p, i, ledger.head.size, key, clues)
		if err != nil {
			return nil, err
		}
		encoded := leaf.encode()
		hash := LeafHash(encoded)
		leaves, result.leaves = append(leaves, hash), append(result.leaves, leaf)
		put(p.id.LeafKey(leaf.JSN), encoded)
		put(p.id.envelopeKey(leaf.JSN), item.encoded)
		for _, clue := range leaf.Clues {
			at := cell{jsn: leaf.JSN, leaf: hash}
			put(p.id.cellKey(clue.Clue, clue.Ordinal), at.encode())
			record := clues[clue.Clue]
			record.chain, record.lastJSN = chained(record.chain, leaf.JSN, hash), leaf.JSN
		}
		ledger.tiles = append(ledger.tiles, ledger.head.push(p.id, hash)...)
	}
	for _, clue := range ordered(clues, func(id *Digest) []byte { return id[:] }) {
		put(p.id.clueKey(clue), clues[clue].encode())
	}
	if p.founding != nil {
		put(LedgerNameKey(p.founding.Name), p.id[:])
		put(p.id.FoundingKey(), p.items[0].envelope.Payload)
	}
	slices.SortFunc(keys, func(a, b newKey) int { return bytes.Compare(a.key[:], b.key[:]) })
	for _, k := range keys {
		put(p.id.publicKeyKey(k.key), k.member[:])
	}
	author, err := r.member(p.id, ledger, p.Member)
	if err != nil {
		return nil, err
	}
	if author.Journals == nil {
		ledger.head.authors++
		put(p.id.AuthorKey(ledger.head.authors), encodeAuthor(p.Member, result.FirstJSN))
	}
	if p.effect != nil {
		ledger.head.closed, ledger.head.purged = p.effect.closed, p.effect.purged
		for _, jsn := range p.effect.occulted {
			ledger.occulted[jsn] = true
		}
		for _, record := range p.effect.records {
			put(record.Key, record.Value)
		}
	}
	result.LeavesRoot = MerkleRoot(leaves)
	return result, r.counted(p, ledger, result.FirstJSN)
}

// leaf makes the leaf of an item, and counts its clues.
func (r *Round) leaf(p *parsedRequest, i int, jsn uint64, key PublicKey, clues map[Digest]*clueRecord) (*Leaf, error) {
	item := p.items[i]
	leaf := &Leaf{
		Kind: item.kind, Ledger: p.id, JSN: jsn, Stamp: r.stamp, Member: p.Member, Agent: p.Agent, Key: key,
		Lane: p.Lane, Number: p.Number, Index: uint32(i), Of: uint32(len(p.items)), Request: p.hash,
		Signature: p.signature, Commitment: item.commitment, EnvelopeBytes: item.length,
	}
	for _, clue := range item.clues {
		if clues[clue] == nil {
			record, err := r.clue(p.id, clue)
			if err != nil {
				return nil, err
			}
			clues[clue] = &record
		}
		clues[clue].count++
		leaf.Clues = append(leaf.Clues, LeafClue{Clue: clue, Ordinal: clues[clue].count})
	}
	return leaf, nil
}

// counted notes the request in the records of its author and its signer.
func (r *Round) counted(p *parsedRequest, ledger *roundLedger, first uint64) error {
	author, err := r.member(p.id, ledger, p.Member)
	if err != nil {
		return err
	}
	author.count(first, uint64(len(p.items)))
	ledger.changed[p.Member] = true
	signer, id := author, p.Member
	if p.Agent != nil {
		id = *p.Agent
		if signer, err = r.member(p.id, ledger, id); err != nil {
			return err
		}
	}
	signer.record(p.Lane, p.Number, first)
	ledger.changed[id], ledger.touched = true, true
	return nil
}

// Close ends the version: each ledger with an applied request has a head, in ascending order.
func (r *Round) Close() []ClosedHead {
	var heads []ClosedHead
	for _, id := range ordered(r.ledgers, func(id *LedgerID) []byte { return id[:] }) {
		ledger := r.ledgers[id]
		if !ledger.touched {
			continue
		}
		head := ClosedHead{
			Ledger: id, SizeBefore: ledger.before, Size: ledger.head.size, Root: ledger.head.root(), Records: ledger.tiles,
		}
		members := ordered(ledger.changed, func(id *MemberID) []byte { return id[:] })
		for _, member := range members {
			head.Records = append(head.Records, PutRecord{Key: id.MemberKey(member), Value: ledger.members[member].encode()})
		}
		head.Records = append(head.Records, PutRecord{Key: id.HeadKey(), Value: ledger.head.encode()})
		heads = append(heads, head)
	}
	return heads
}
