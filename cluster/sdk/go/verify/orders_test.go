package verify

import (
	"bytes"
	"crypto/ed25519"
	"math"
	"reflect"
	"testing"
)

// ordersOfAllKinds has one order of each kind, by what it does.
func ordersOfAllKinds() map[string]*Order {
	approvals := []Approval{{Member: MemberID{1}}, {Member: MemberID{2}, Signature: [64]byte{7}}}
	return map[string]*Order{
		"occult": {Until: 9, Targets: []Target{{3, Digest{1}}, {4, Digest{2}}}, Approvals: approvals},
		"purge": {Until: 9, Purge: &PurgeOrder{
			Before: 5, Closes: true, Size: 5, Root: Digest{3}, Authors: 2, Absent: []Absent{{MemberID{4}, 2}, {MemberID{5}, 3}},
		}, Approvals: approvals},
		"retain": {Until: 9, Retain: &RetainOrder{Purge: 5, Journals: []uint64{1, 3}}},
		"recall": {Until: 9, Recall: &RecallOrder{Purge: 5}},
		"sweep":  {Until: math.MaxUint64, Sweep: &SweepOrder{Purge: 5, From: 0, To: 1024}},
	}
}

func TestEachOrderHasOneSpellingAndOneMessage(t *testing.T) {
	messages := map[string]bool{}
	for name, order := range ordersOfAllKinds() {
		encoded, err := order.Encode()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		decoded, err := DecodeOrder(encoded)
		if err != nil || !reflect.DeepEqual(decoded, order) {
			t.Errorf("%s: %+v, %v", name, decoded, err)
		}
		messages[string(order.Message(ClusterID{}, LedgerID{}))] = true
		for bit := range len(encoded) * 8 {
			damaged := bytes.Clone(encoded)
			damaged[bit/8] ^= 1 << (bit % 8)
			checkCanonical(t, damaged)
			if other, err := DecodeOrder(damaged); err == nil && reflect.DeepEqual(other, order) {
				t.Errorf("%s: bit %d is flipped: %+v", name, bit, other)
			}
		}
		for length := range encoded {
			if short, err := DecodeOrder(encoded[:length]); err == nil {
				t.Errorf("%s: %d bytes are taken for %+v", name, length, short)
			}
		}
	}
	if len(messages) != len(ordersOfAllKinds()) {
		t.Error("two orders have the same message")
	}
}

func TestOrdersThatNoLedgerTakesAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		of     string
		change func(*Order)
	}{
		"nothing to occult":             {"occult", func(o *Order) { o.Targets = []Target{} }},
		"nothing to do":                 {"occult", func(o *Order) { o.Targets = nil }},
		"two things to do":              {"sweep", func(o *Order) { o.Recall = &RecallOrder{} }},
		"a journal to occult twice":     {"occult", func(o *Order) { o.Targets[1].JSN = o.Targets[0].JSN }},
		"too many to occult":            {"occult", func(o *Order) { o.Targets = make([]Target, 1025) }},
		"approvals that descend":        {"purge", func(o *Order) { o.Approvals[0].Member[0] = 3 }},
		"too many approvals":            {"purge", func(o *Order) { o.Approvals = approvalsOf(257) }},
		"a purge of nothing":            {"purge", func(o *Order) { o.Purge.Before = 0 }},
		"a purge of more than was seen": {"purge", func(o *Order) { o.Purge.Before = o.Purge.Size + 1 }},
		"more authors than can sign":    {"purge", func(o *Order) { o.Purge.Authors = 514 }},
		"an absent member twice":        {"purge", func(o *Order) { o.Purge.Absent[1].Member = o.Purge.Absent[0].Member }},
		"too many absent members":       {"purge", func(o *Order) { o.Purge.Absent = make([]Absent, 257) }},
		"nothing to retain":             {"retain", func(o *Order) { o.Retain.Journals = nil }},
		"journals that descend":         {"retain", func(o *Order) { o.Retain.Journals[0] = 4 }},
		"too many to retain":            {"retain", func(o *Order) { o.Retain.Journals = make([]uint64, 1025) }},
		"an approved retention":         {"retain", func(o *Order) { o.Approvals = approvalsOf(1) }},
		"an approved recall":            {"recall", func(o *Order) { o.Approvals = approvalsOf(1) }},
		"an approved sweep":             {"sweep", func(o *Order) { o.Approvals = approvalsOf(1) }},
		"a sweep of nothing":            {"sweep", func(o *Order) { o.Sweep.To = o.Sweep.From }},
		"a sweep backwards":             {"sweep", func(o *Order) { o.Sweep.From = o.Sweep.To + 1 }},
		"a sweep of too many":           {"sweep", func(o *Order) { o.Sweep.To = 1025 }},
	} {
		order := ordersOfAllKinds()[c.of]
		c.change(order)
		if encoded, err := order.Encode(); err == nil {
			t.Errorf("%s is encoded as %x", name, encoded)
		}
	}
	for _, name := range []string{"occult", "purge"} {
		order := ordersOfAllKinds()[name]
		order.Approvals = approvalsOf(256)
		if _, err := order.Encode(); err != nil {
			t.Errorf("%s with 256 approvals: %v", name, err)
		}
	}
	encoded, _ := ordersOfAllKinds()["recall"].Encode()
	encoded[9] = 5
	if order, err := DecodeOrder(encoded); err == nil {
		t.Errorf("another kind is taken for %+v", order)
	}
}

func approvalsOf(count int) []Approval {
	approvals := make([]Approval, count)
	for i := range approvals {
		approvals[i].Member = MemberID{byte(i >> 8), byte(i)}
	}
	return approvals
}

func TestOnlyAnOrderThatOccultsNamesJournals(t *testing.T) {
	for name, order := range ordersOfAllKinds() {
		if order.Names(Target{3, Digest{1}}) != (name == "occult") {
			t.Errorf("an order to %s", name)
		}
	}
}

// Each flipped bit of a record is refused or says something else.
func TestRecordsOfLedgersHaveOneSpelling(t *testing.T) {
	head := &ledgerHead{closed: true, purged: 3, authors: 2}
	for i := range 18 {
		head.push(LedgerID{}, Digest{byte(i)})
	}
	state, err := DecodeLedgerState(head.encode())
	if err != nil || state != (LedgerState{Size: 18, Root: head.root(), Purged: 3, Closed: true}) {
		t.Errorf("%+v, %v", state, err)
	}
	clue := &clueRecord{count: 5, lastJSN: 9, chain: Digest{1}, gone: 2, chainGone: Digest{2}}
	purge := &Purge{
		Order: 7, Stamp: Stamp{Epoch: 1, Version: 2}, Before: 5, Closes: true, State: PurgeSwept, Swept: 3,
	}
	type encodes interface{ encode() []byte }
	for name, c := range map[string]struct {
		encoded []byte
		again   func([]byte) ([]byte, error)
	}{
		"head": {head.encode(), again(func(b []byte) (encodes, error) { return decodeHead(b) })},
		"clue": {clue.encode(), again(func(b []byte) (encodes, error) {
			c, err := decodeClue(b)
			return &c, err
		})},
		"cell": {(&cell{jsn: 4, leaf: Digest{1}}).encode(), again(func(b []byte) (encodes, error) {
			c, err := decodeCell(b)
			return &c, err
		})},
		"purge": {purge.encode(), again(func(b []byte) (encodes, error) { return DecodePurge(b) })},
		"retains": {encodeRetains(7, 3), func(b []byte) ([]byte, error) {
			purge, count, err := decodeRetains(b)
			return encodeRetains(purge, count), err
		}},
		"author": {encodeAuthor(MemberID{1}, 4), func(b []byte) ([]byte, error) {
			member, first, err := DecodeAuthor(b)
			return encodeAuthor(member, first), err
		}},
	} {
		if same, err := c.again(c.encoded); err != nil || !bytes.Equal(same, c.encoded) {
			t.Errorf("%s: %x, %v", name, same, err)
		}
		for bit := range len(c.encoded) * 8 {
			damaged := bytes.Clone(c.encoded)
			damaged[bit/8] ^= 1 << (bit % 8)
			if same, err := c.again(damaged); err == nil && !bytes.Equal(same, damaged) {
				t.Errorf("%s: bit %d is flipped: %x is encoded as %x", name, bit, damaged, same)
			}
		}
		for length := range c.encoded {
			if _, err := c.again(c.encoded[:length]); err == nil {
				t.Errorf("%s: %d bytes are taken", name, length)
			}
		}
	}
}

func again[T interface{ encode() []byte }](decode func([]byte) (T, error)) func([]byte) ([]byte, error) {
	return func(encoded []byte) ([]byte, error) {
		decoded, err := decode(encoded)
		if err != nil {
			return nil, err
		}
		return decoded.encode(), nil
	}
}

// owned is a ledger of the bank, whose requests are judged one version after the other.
type owned struct {
	t       *testing.T
	id      LedgerID
	state   map[string][]byte
	version uint64
	number  uint64
}

// append sends journals of a kind in a version of their own.
func (o *owned) append(kind uint8, payloads ...[]byte) (first uint64, err error) {
	o.t.Helper()
	o.version++
	o.number++
	round := NewRound(ClusterID{}, Stamp{Version: o.version}, func(key []byte) []byte { return o.state[string(key)] }, nil)
	round.At(o.version*1000, func(version uint64) (uint64, bool) { return version * 1000, version < o.version })
	var items []Item
	for _, payload := range payloads {
		envelope, err := (&Envelope{Payload: payload}).Encode()
		if err != nil {
			o.t.Fatal(err)
		}
		items = append(items, Item{Kind: kind, Envelope: envelope})
	}
	request := SignedRequest{Ledger: o.id, Member: MemberIDOf("bank"), Number: o.number, SeenSize: 1}
	signed, err := request.Over(items)
	if err != nil {
		o.t.Fatal(err)
	}
	sent := Request{Signed: signed, Items: items}
	copy(sent.Signature[:], ed25519.Sign(seeded(1), signed))
	appended, err := round.Append(sent)
	if err != nil {
		o.number--
		return 0, err
	}
	o.id = appended.Ledger
	records := appended.Records
	for _, head := range round.Close() {
		records = append(records, head.Records...)
	}
	for _, record := range records {
		if record.Value == nil {
			delete(o.state, string(record.Key))
		} else {
			o.state[string(record.Key)] = record.Value
		}
	}
	return appended.FirstJSN, nil
}

func (o *owned) order(order Order) (uint64, error) {
	o.t.Helper()
	order.Until = 100
	payload, err := order.Encode()
	if err != nil {
		o.t.Fatal(err)
	}
	return o.append(JournalOrder, payload)
}

func (o *owned) head() LedgerState {
	state, err := DecodeLedgerState(o.state[string(o.id.HeadKey())])
	if err != nil {
		o.t.Error(err)
	}
	return state
}

// purge orders to purge below a number, or the whole ledger.
func (o *owned) purge(before uint64, closes bool) (uint64, error) {
	o.t.Helper()
	head := o.head()
	if closes {
		before = head.Size
	}
	return o.order(Order{Purge: &PurgeOrder{Before: before, Closes: closes, Size: head.Size, Root: head.Root, Authors: 1}})
}

func newOwned(t *testing.T) *owned {
	t.Helper()
	o := &owned{t: t, state: map[string][]byte{}}
	founding := &Founding{
		Name:    "grain",
		Members: []Grant{{Name: "bank", Roles: RoleOwner | RoleWriter, Key: PublicKey(publicOf(1))}},
	}
	founding.Policy.NoticeSeconds = 2
	payload, err := founding.Encode()
	if err == nil {
		_, err = o.append(JournalFounding, payload)
	}
	if err == nil {
		o.number = 1
		_, err = o.append(JournalData, []byte("one"), []byte("two"))
	}
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func expect(t *testing.T, what string, err error, wanted error) {
	t.Helper()
	if err != wanted {
		t.Errorf("%s: %v, not %v", what, err, wanted)
	}
}

func TestAClosedLedgerTakesOrdersAndClosesOnce(t *testing.T) {
	o := newOwned(t)
	_, err := o.purge(2, false)
	expect(t, "a part of a request", err, RefusedOrder)
	purge, err := o.purge(0, true)
	expect(t, "a purge that closes", err, nil)
	sweep := func(from, to uint64) error {
		_, err := o.order(Order{Sweep: &SweepOrder{Purge: purge, From: from, To: to}})
		return err
	}
	expect(t, "a sweep in the time of notice", sweep(0, 3), RefusedOrder)
	if head := o.head(); !head.Closed || head.Purged != 0 {
		t.Errorf("%+v", head)
	}
	_, err = o.append(JournalData, []byte("three"))
	expect(t, "data for a closed ledger", err, RefusedClosed)
	_, err = o.purge(1, false)
	expect(t, "a second purge", err, RefusedOrder)
	expect(t, "another beginning", sweep(1, 3), RefusedOrder)
	expect(t, "a sweep", sweep(0, 2), nil)
	_, err = o.order(Order{Recall: &RecallOrder{Purge: purge}})
	expect(t, "a late recall", err, RefusedOrder)
	if o.state[string(LedgerNameKey("grain"))] == nil {
		t.Error("the name is free before the last sweep")
	}
	expect(t, "the last sweep", sweep(2, 3), nil)
	for jsn, gone := range []bool{false, true, true, false} {
		if (o.state[string(o.id.LeafKey(uint64(jsn)))] == nil) != gone ||
			(o.state[string(o.id.envelopeKey(uint64(jsn)))] == nil) != gone {
			t.Errorf("it is not so that journal %d is gone: %t", jsn, gone)
		}
	}
	if head := o.head(); head.Purged != 3 || !head.Closed || o.state[string(LedgerNameKey("grain"))] != nil {
		t.Errorf("%+v", head)
	}
	_, err = o.purge(0, true)
	expect(t, "a second purge that closes", err, RefusedOrder)
	_, err = o.purge(5, false)
	expect(t, "a purge of a closed ledger", err, nil)
}

func TestARecallOpensTheLedger(t *testing.T) {
	o := newOwned(t)
	purge, err := o.purge(0, true)
	expect(t, "a purge that closes", err, nil)
	_, err = o.order(Order{Recall: &RecallOrder{Purge: purge + 1}})
	expect(t, "a recall of another journal", err, RefusedOrder)
	_, err = o.order(Order{Recall: &RecallOrder{Purge: purge}})
	expect(t, "a recall", err, nil)
	if head := o.head(); head.Closed || head.Purged != 0 {
		t.Errorf("%+v", head)
	}
	_, err = o.append(JournalData, []byte("three"))
	expect(t, "data", err, nil)
}
