package verify

import (
	"crypto/ed25519"
	"errors"
	"maps"
	"slices"
	"testing"
)

// grain is a ledger of a bank, a mill and a court, of which the last may not write.
func grain(t *testing.T) (*model, LedgerID) {
	t.Helper()
	m := newModel(modelCluster)
	founding := &Founding{Name: "grain", Policy: LedgerPolicy{Occult: 1}, Members: []Grant{
		{Name: "bank", Roles: RoleOwner | RoleWriter, Key: modelKey("bank")},
		{Name: "mill", Roles: RoleWriter, Key: modelKey("mill")},
		{Name: "court", Roles: RoleRegulator, Key: modelKey("court")},
	}}
	payload, err := founding.Encode()
	if err != nil {
		t.Fatal(err)
	}
	request := modelRequest(t, LedgerID{}, "bank", 1, nil, modelItem(t, JournalFounding, payload))
	ledger := FoundedID(modelCluster, request.Signed, false)
	m.commit(t, nil, request)
	word := func(member string, number uint64, clue string) Request {
		return modelRequest(t, ledger, member, number, nil, modelItem(t, JournalData, []byte("word"), clue))
	}
	m.commit(t, nil, word("bank", 2, "lot"), word("mill", 1, "lot"))
	m.commit(t, nil, word("mill", 2, "bag"))
	return m, ledger
}

// A coordinator that believes other records than the ledger has applies what honest ones refuse,
// with all that would follow.
func TestRequestsThatShouldHaveBeenRefusedAreFound(t *testing.T) {
	ledger := func() LedgerID { _, id := grain(t); return id }()
	word := func(member string, number uint64, change func(*SignedRequest)) Request {
		return modelRequest(t, ledger, member, number, change, modelItem(t, JournalData, []byte("never"), "lot"))
	}
	member := func(m *Member) map[string][]byte {
		return map[string][]byte{string(ledger.MemberKey(MemberIDOf(m.Name))): m.encode()}
	}
	keyed := func(name, key string, roles Roles, lane uint64) map[string][]byte {
		record := &Member{Name: name, Roles: roles, Keys: []MemberKey{{Key: modelKey(key)}}}
		if lane > 0 {
			record.record(0, lane, 1)
		}
		record.count(1, 1)
		return member(record)
	}
	stolen := word("mill", 3, nil)
	copy(stolen.Signature[:], ed25519.Sign(modelHand("thief"), stolen.Signed))
	lot := ClueHash(ledger, []byte("lot"))
	miscounted := map[string][]byte{string(ledger.clueKey(lot)): (&clueRecord{count: 7}).encode()}
	counted := func(s *SignedRequest) { s.Conditions = []Condition{{OfClue: true, Clue: lot, Number: 7}} }
	m, _ := grain(t)
	first, err := DecodeLeaf(m.state[string(ledger.LeafKey(1))])
	if err != nil {
		t.Fatal(err)
	}
	order := func(leaf *Leaf, approvals ...string) Request {
		o := &Order{Until: 99, Targets: []Target{{JSN: leaf.JSN, Leaf: leaf.Hash()}}}
		for _, name := range approvals {
			approval := Approval{Member: MemberIDOf(name)}
			copy(approval.Signature[:], ed25519.Sign(modelHand(name), o.Message(modelCluster, ledger)))
			o.Approvals = append(o.Approvals, approval)
		}
		payload, err := o.Encode()
		if err != nil {
			t.Fatal(err)
		}
		return modelRequest(t, ledger, "bank", 3, nil, modelItem(t, JournalOrder, payload))
	}
	other := *first
	other.Lane = 5
	founding, err := DecodeFounding(m.state[string(ledger.FoundingKey())])
	if err != nil {
		t.Fatal(err)
	}
	founding.Members, founding.Policy.Occult = founding.Members[:1], 2
	alone, err := founding.Encode()
	if err != nil {
		t.Fatal(err)
	}
	head, err := decodeHead(m.state[string(ledger.HeadKey())])
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		overlay map[string][]byte
		request Request
		word    Refusal
	}{
		"of no member":             {keyed("thief", "thief", RoleWriter, 0), word("thief", 1, nil), RefusedMember},
		"of another key":           {keyed("mill", "thief", RoleWriter, 2), stolen, RefusedSignature},
		"without the role":         {keyed("court", "court", RoleWriter, 0), word("court", 1, nil), RefusedRole},
		"a number left out":        {keyed("mill", "mill", RoleWriter, 3), word("mill", 4, nil), RefusedLane},
		"a number twice":           {keyed("mill", "mill", RoleWriter, 1), word("mill", 2, nil), RefusedLane},
		"of another log":           {nil, word("mill", 3, nil), RefusedEpoch},
		"of a log that is to come": {nil, word("mill", 3, func(s *SignedRequest) { s.SeenSize = 1000 }), RefusedEpoch},
		"a count that is wrong":    {miscounted, word("mill", 3, counted), RefusedCount},
		"an order of one":          {map[string][]byte{string(ledger.FoundingKey()): alone}, order(first), RefusedApproval},
		"an order for another leaf": {
			map[string][]byte{string(ledger.LeafKey(1)): other.encode()}, order(&other, "court"), RefusedOrder,
		},
		"an honest request": {nil, word("mill", 3, nil), ""},
		"an honest order":   {nil, order(first, "court"), ""},
	} {
		m, _ := grain(t)
		m.commit(t, c.overlay, c.request)
		for _, behind := range []uint64{0, 1, m.head() - 1} {
			a := m.audited(t, ledger, behind, m.head()-1)
			if what == "of another log" {
				a.root = func(uint64) (Digest, bool) { return Digest{8}, true }
			} else if c.word == RefusedEpoch {
				a.root = func(uint64) (Digest, bool) { return modelRoot, true }
			}
			err := m.take(t, a, ledger)
			if c.word == "" {
				if err != nil {
					t.Errorf("%s behind %d: %v", what, behind, err)
				}
				continue
			}
			offence := isOffence(t, what, err, OffenceRequest)
			if !errors.Is(err, c.word) || offence.JSN == nil || *offence.JSN != head.size || !offence.InLog() {
				t.Errorf("%s behind %d: %v, not %s", what, behind, err, c.word)
			}
		}
	}
}

func TestALedgerIsFoundedOnceAndUnderItsID(t *testing.T) {
	m, ledger := grain(t)
	again := m.altered(2, func(v *modelVersion) {
		founding, told := *m.versions[1].entries[0], m.versions[1].told[ledger][0]
		v.entries, v.told[ledger] = slices.Insert(v.entries, 0, &founding), slices.Insert(v.told[ledger], 0, told)
	})
	a := m.audited(t, ledger, 0, 1)
	a.log = &again.log
	if err := again.take(t, a, ledger); !errors.Is(err, RefusedName) {
		t.Error(err)
	}
	var stranger LedgerID
	stranger[3] = 4
	renamed := m.altered(1, func(v *modelVersion) {
		for _, entry := range v.entries {
			entry.Ledger = stranger
		}
		v.told[stranger] = v.told[ledger]
	})
	a = renamed.auditor(t, stranger, 0)
	isOffence(t, "another id", renamed.take(t, a, stranger), OffenceRequest)
	unfounded := m.auditor(t, ledger, 1)
	unfounded.since, unfounded.head = nil, nil
	clear(unfounded.records)
	if err := m.take(t, unfounded, ledger); !errors.Is(err, RefusedLedger) {
		t.Error(err)
	}
}

func TestContentIsThatOfTheLeafAndOfTheAgent(t *testing.T) {
	m, ledger := grain(t)
	agent, err := EncodeMemberChanges([]MemberChange{{
		Kind: ChangeAgent, Grant: Grant{Name: "scale", Roles: RoleWriter, Key: modelKey("scale")}, Prefix: []byte("lot-"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	m.commit(t, nil, modelRequest(t, ledger, "mill", 3, nil, modelItem(t, JournalMembers, agent)))
	by := func(clue string) (Request, Item) {
		item, id := modelItem(t, JournalData, []byte("weight"), clue), MemberIDOf("scale")
		request := modelRequest(t, ledger, "mill", 1, func(s *SignedRequest) { s.Agent = &id }, item)
		copy(request.Signature[:], ed25519.Sign(modelHand("scale"), request.Signed))
		return request, item
	}
	overlay := &Member{
		Name: "scale", Roles: RoleWriter, Agency: &Agency{Principal: MemberIDOf("mill")},
		Keys: []MemberKey{{Key: modelKey("scale"), From: m.auditorHead(t, ledger)}},
	}
	free := map[string][]byte{string(ledger.MemberKey(MemberIDOf("scale"))): overlay.encode()}
	for clue, wanted := range map[string]error{"lot-7": nil, "bag-7": RefusedRole} {
		request, item := by(clue)
		last := len(m.versions)
		saved, versions := maps.Clone(m.state), slices.Clone(m.log.versions)
		var lies map[string][]byte
		if wanted != nil {
			lies = free
		}
		m.commit(t, lies, request)
		a := m.audited(t, ledger, 0, m.head()-1)
		told := m.versions[last].told[ledger][0]
		leaf, err := DecodeLeaf(told.Leaves[0])
		if err != nil {
			t.Fatal(err)
		}
		if err := a.CheckEnvelope(leaf, item.Envelope); !errors.Is(err, wanted) {
			t.Errorf("%s: %v", clue, err)
		}
		other := modelItem(t, JournalData, []byte("weight"), "lot-8").Envelope
		if err := a.CheckEnvelope(leaf, other); !errors.Is(err, RefusedForm) {
			t.Errorf("other clues: %v", err)
		}
		if err := a.CheckEnvelope(leaf, []byte("nothing")); !errors.Is(err, RefusedForm) {
			t.Errorf("no envelope: %v", err)
		}
		m.versions, m.log.versions, m.state = m.versions[:last], versions, saved
	}
}

func TestARequestByItsLeavesHasTheirForm(t *testing.T) {
	m, ledger := grain(t)
	decoded := func(jsn uint64) *Leaf {
		leaf, err := DecodeLeaf(m.state[string(ledger.LeafKey(jsn))])
		if err != nil {
			t.Fatal(err)
		}
		return leaf
	}
	item := modelItem(t, JournalData, []byte("word"), "lot")
	request := func(change func(*SignedRequest)) Request { return modelRequest(t, ledger, "mill", 3, change, item) }
	leaf := decoded(2)
	order := *leaf
	order.Kind = JournalOrder
	round := func() *Round {
		return NewRound(modelCluster, Stamp{Version: 9}, func(key []byte) []byte { return m.state[string(key)] }, nil)
	}
	honest := request(nil)
	if _, err := round().appendLeaves(honest.Signed, honest.Signature, []*Leaf{leaf}); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		request Request
		leaves  []*Leaf
	}{
		"of another cluster": {request(func(s *SignedRequest) { s.Cluster[0] ^= 1 }), []*Leaf{leaf}},
		"that founds":        {request(func(s *SignedRequest) { s.Ledger = LedgerID{} }), []*Leaf{leaf}},
		"of a leaf less":     {honest, nil},
		"of a leaf more":     {honest, []*Leaf{leaf, leaf}},
		"of another kind":    {honest, []*Leaf{&order}},
		"of another journal": {honest, []*Leaf{decoded(3)}},
		"that is no request": {Request{Signed: []byte("word")}, []*Leaf{leaf}},
	} {
		_, err := round().appendLeaves(c.request.Signed, c.request.Signature, c.leaves)
		if !errors.Is(err, RefusedForm) {
			t.Errorf("a request %s: %v", what, err)
		}
	}
}

// A journal that was swept is gone for later orders, whoever still has its leaf.
func TestWhatWasSweptIsJudgedAsGone(t *testing.T) {
	m, ledger := grain(t)
	head, err := decodeHead(m.state[string(ledger.HeadKey())])
	if err != nil {
		t.Fatal(err)
	}
	number := uint64(3)
	order := func(o *Order, approving ...string) Request {
		o.Until = 99
		for _, name := range approving {
			approval := Approval{Member: MemberIDOf(name)}
			copy(approval.Signature[:], ed25519.Sign(modelHand(name), o.Message(modelCluster, ledger)))
			o.Approvals = append(o.Approvals, approval)
		}
		payload, err := o.Encode()
		if err != nil {
			t.Fatal(err)
		}
		number++
		return modelRequest(t, ledger, "bank", number-1, nil, modelItem(t, JournalOrder, payload))
	}
	encoded := m.state[string(ledger.LeafKey(1))]
	purge := &PurgeOrder{Before: 3, Size: head.size, Root: head.root(), Authors: 2}
	m.commit(t, nil, order(&Order{Purge: purge}, "mill"))
	m.commit(t, nil, order(&Order{Sweep: &SweepOrder{Purge: head.size, From: 0, To: 3}}))
	if m.state[string(ledger.LeafKey(1))] != nil || m.state[string(ledger.LeafKey(0))] == nil {
		t.Fatal("nothing was swept, or too much")
	}
	forged := map[string][]byte{
		string(ledger.LeafKey(1)): encoded, string(ledger.RetainedKey(1)): encodeRetained(1, MemberID{}),
	}
	target := Target{JSN: 1, Leaf: LeafHash(encoded)}
	m.commit(t, forged, order(&Order{Targets: []Target{target}}, "court"))
	for _, behind := range []uint64{0, 2, 4, 5} {
		a := m.audited(t, ledger, behind, m.head()-1)
		if err := m.take(t, a, ledger); !errors.Is(err, RefusedOrder) {
			t.Errorf("behind %d: %v", behind, err)
		}
	}
}

// auditorHead is the size of a ledger in the newest version.
func (m *model) auditorHead(t *testing.T, ledger LedgerID) uint64 {
	t.Helper()
	head, err := decodeHead(m.state[string(ledger.HeadKey())])
	if err != nil {
		t.Fatal(err)
	}
	return head.size
}
