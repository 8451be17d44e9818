package verify

import (
	"encoding/hex"
	"errors"
	"testing"
)

// anchorVectors is anchors.json: a log with anchors, and interval proofs of its entries.
type anchorVectors struct {
	Vkey    string
	Entries []hexBytes
	Invalid []struct {
		Why   string
		Bytes hexBytes
	} `json:"invalid headers"`
	Proofs, Lies []proofCase
}

func readAnchors(t *testing.T) (*anchorVectors, VKey) {
	t.Helper()
	all := &anchorVectors{}
	vectors(t, "anchors.json", all)
	if len(all.Entries) < 12 || len(all.Invalid) < 12 || len(all.Proofs) < 8 || len(all.Lies) < 14 {
		t.Fatal("vectors are missing")
	}
	return all, mustKey(t, all.Vkey)
}

func TestAnchorsAreReadAsTheVectorsSay(t *testing.T) {
	all, key := readAnchors(t)
	log, anchors := &HeaderLog{}, 0
	for i, entry := range all.Entries {
		if err := log.Append(entry); err != nil {
			t.Fatalf("entry %d: %v", i, err)
		}
		if header := log.newest; header.Kind == KindAnchor {
			if (header.Anchor.Chain == nil) == (header.Anchor.Stamps == nil) {
				t.Errorf("entry %d: %+v", i, header.Anchor)
			}
			anchors++
		}
	}
	if anchors != 4 || log.Checkpoint().Origin != key.Name {
		t.Errorf("%d anchors in the log %s", anchors, log.Checkpoint().Origin)
	}
	for _, invalid := range all.Invalid {
		if _, err := DecodeHeader(invalid.Bytes); err == nil {
			t.Errorf("accepted: %s", invalid.Why)
		}
	}
}

func TestEachAnchorStampsMoreThanTheOneBefore(t *testing.T) {
	all, _ := readAnchors(t)
	// The last anchor stamps 11 entries.
	for before, sound := range map[uint64]bool{10: true, 11: false, 12: false} {
		log := &HeaderLog{}
		for _, entry := range all.Entries[:11] {
			if err := log.Append(entry); err != nil {
				t.Fatal(err)
			}
		}
		if log.stamped != 7 {
			t.Errorf("the anchors before stamp %d entries", log.stamped)
		}
		log.stamped = before
		err := log.Append(all.Entries[11])
		var broken *AuditError
		if sound != (err == nil) || !sound && (!errors.As(err, &broken) || broken.Rule != 2) {
			t.Errorf("behind an anchor of %d entries: %v", before, err)
		}
	}
}

func anchorClaims(anchors []ProvenAnchor) []any {
	list := []any{}
	for _, anchor := range anchors {
		stamps := anchor.Header.Anchor.Stamps
		tokens := []any{}
		for _, token := range stamps.Tokens {
			tokens = append(tokens, []any{token.Type, token.Chain, hex.EncodeToString(token.Bytes)})
		}
		list = append(list, object{
			"sequence": anchor.Header.Sequence, "size": stamps.Size, "root": stamps.Root.String(),
			"imprint": anchor.Imprint.String(), "tokens": tokens,
		})
	}
	return list
}

func TestProofsOfIntervalsAreJudgedAsTheVectorsSay(t *testing.T) {
	all, key := readAnchors(t)
	for _, c := range all.Proofs {
		verified, err := Verify(c.File, key, nil)
		if err != nil {
			t.Errorf("%s: %v", c.Name, err)
			continue
		}
		compareClaim(t, c.Name, object{
			"kind": verified.Kind.String(), "version": pairOf(verified.Header.Stamp()),
			"sequence": verified.Header.Sequence, "below": anchorClaims(verified.Interval.Below),
			"above": anchorClaims(verified.Interval.Above),
		}, c.Claim)
	}
	for _, c := range all.Lies {
		if _, err := Verify(c.File, key, nil); err == nil || stepOf(err) != c.step() {
			t.Errorf("%s: refused by %q, not by %q: %v", c.Name, stepOf(err), c.step(), err)
		}
	}
}

// A proof of an interval belongs to another proof by the bytes of the header.
func TestAnIntervalIsThatOfOneEntry(t *testing.T) {
	all, key := readAnchors(t)
	verified, err := Verify(all.Proofs[0].File, key, nil)
	if err != nil {
		t.Fatal(err)
	}
	sequence := verified.Header.Sequence
	if verified.Entry != EntryHash(all.Entries[sequence]) {
		t.Error("another hash of the entry")
	}
	hash, other := verified.Entry, EntryHash(all.Entries[0])
	for name, c := range map[string]struct {
		subject Subject
		sound   bool
	}{
		"the entry":             {AboutEntry{Sequence: sequence}, true},
		"the entry, its bytes":  {AboutEntry{Sequence: sequence, Hash: &hash}, true},
		"another entry":         {AboutEntry{Sequence: sequence + 1}, false},
		"another entry's bytes": {AboutEntry{Sequence: sequence, Hash: &other}, false},
		"another kind":          {AboutTime(0), false},
	} {
		if err := verified.Answers(Question{Subject: c.subject}); (err == nil) != c.sound || stepOf(err) != "" && c.sound {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := (AboutEntry{Sequence: sequence}).check(&Verified{Header: verified.Header}); err == nil {
		t.Error("a proof of another kind is one of an interval")
	}
}

// Files of a kind that the format does not have are refused, as a reader of that format would.
func TestAnIntervalHasTheLaterFormat(t *testing.T) {
	all, key := readAnchors(t)
	for name, change := range map[string]func([]byte){
		"format 3": func(file []byte) { file[len(fileMagic)] = 3 },
		"kind 7":   func(file []byte) { file[len(fileMagic)+1] = 7 },
	} {
		file := append([]byte(nil), all.Proofs[0].File...)
		change(file)
		w := writer(file[:len(file)-checksumBytes])
		w.u64(checksum(w))
		if _, err := Verify(w, key, nil); stepOf(err) != "format" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// No log has such anchors: each rule is held on its own.
func TestAnchorsAscendByPlaceAndByWhatTheyStamp(t *testing.T) {
	at := func(sequence, size uint64) ProvenAnchor {
		return ProvenAnchor{Header: &Header{Sequence: sequence, Anchor: &Anchor{Stamps: &Stamps{Size: size}}}}
	}
	for name, c := range map[string]struct {
		second ProvenAnchor
		sound  bool
	}{
		"one behind the other": {at(9, 6), true},
		"one place":            {at(8, 6), false},
		"one size":             {at(9, 5), false},
		"a place before":       {at(7, 6), false},
		"a smaller size":       {at(9, 4), false},
	} {
		first := at(8, 5)
		for _, claim := range []Interval{
			{Below: []ProvenAnchor{first, c.second}},
			{Below: []ProvenAnchor{first}, Above: []ProvenAnchor{c.second}},
			{Above: []ProvenAnchor{first, c.second}},
		} {
			if err := claim.checkOrder(); (err == nil) != c.sound {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

func TestAnIntervalHasAtMost16AnchorsOnASide(t *testing.T) {
	part := make([]byte, 4)
	for _, c := range []struct {
		below, above int
		sound        bool
	}{{16, 16, true}, {17, 16, false}, {16, 17, false}, {0, 0, true}} {
		w := writer{}
		w.u16(uint16(c.below))
		for range c.below {
			w.bytes(part)
		}
		w.u16(uint16(c.above))
		for range c.above {
			w.bytes(part)
			w.u16(0)
		}
		r := &reader{rest: w}
		decodeInterval(r)
		if err := r.end(); (err == nil) != c.sound {
			t.Errorf("%d below and %d above: %v", c.below, c.above, err)
		}
	}
}
