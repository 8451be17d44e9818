package verify

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

// encode encodes a header again, with its present fields and its old body.
func (h *Header) encode() []byte {
	w := writer{}
	w.u8(h.Format)
	w.u8(uint8(h.Kind))
	w.bytes(h.Cluster[:])
	w.u64(h.Sequence)
	w.u64(h.Epoch)
	w.u64(h.Version)
	w.u64(h.TimestampMS)
	w.digest(h.StateRoot)
	w.u32(h.StateLeaves)
	w.digest(h.ShardMap)
	w.digest(h.JournalRoot)
	w.u32(h.JournalLeaves)
	w.digest(h.EpochsRoot)
	w.u32(h.EpochPairs)
	w.u64(h.AdminSequence)
	if h.Format == format2 {
		w.u32(h.KeyChanges)
	}
	w.digest(h.Previous)
	w.str16(h.Body)
	return w
}

// brokenHeaders break one rule each.
var brokenHeaders = map[string]map[string]func(*Header){
	"genesis": {
		"another format": func(h *Header) { h.Format = 3 }, "the other format": func(h *Header) { h.Format = format2 },
		"a later place": func(h *Header) { h.Sequence = 1 }, "an epoch": func(h *Header) { h.Epoch = 1 },
		"a version": func(h *Header) { h.Version = 1 }, "an order": func(h *Header) { h.AdminSequence = 1 },
		"an entry before": func(h *Header) { h.Previous[3] = 1 }, "another state": func(h *Header) { h.StateRoot[3] ^= 1 },
		"another map": func(h *Header) { h.ShardMap[3] ^= 1 }, "more leaves": func(h *Header) { h.StateLeaves++ },
		"other epochs": func(h *Header) { h.EpochsRoot[3] ^= 1 }, "two pairs": func(h *Header) { h.EpochPairs++ },
		"a journal": func(h *Header) { h.JournalRoot[3] ^= 1 }, "a batch": func(h *Header) { h.JournalLeaves++ },
		"another kind": func(h *Header) { h.Kind = 9 }, "a byte behind": func(h *Header) { h.Body = append(h.Body, 0) },
		"a byte less": func(h *Header) { h.Body = h.Body[1:] },
	},
	"commit": {
		"version 0": func(h *Header) { h.Version = 0 }, "a body": func(h *Header) { h.Body = []byte{0} },
		"the first place": func(h *Header) { h.Sequence = 0 }, "no leaves": func(h *Header) { h.StateLeaves = 0 },
		"no pairs": func(h *Header) { h.EpochPairs = 0 },
	},
	"rollback": {
		"not counted": func(h *Header) { h.AdminSequence = 0 }, "another epoch": func(h *Header) { h.Epoch++ },
		"epoch 0": func(h *Header) { h.Epoch = 0 }, "another version": func(h *Header) { h.Version++ },
		"a target of a later epoch":   func(h *Header) { h.Body[0] = 200 },
		"a target of a later version": func(h *Header) { h.Body[8], h.Version = 200, 200 },
		"a journal":                   func(h *Header) { h.JournalLeaves = 1 },
		"a text that is no UTF-8":     func(h *Header) { h.Body[len(h.Body)-1] = 0xff },
	},
	"prune": {
		"not counted":      func(h *Header) { h.AdminSequence = 0 },
		"a boundary above": func(h *Header) { h.Body[0], h.Body[1] = 0xff, 0xff },
		"a principal of 257 bytes": func(h *Header) {
			w := append(writer{}, h.Body[:8]...)
			w.str16([]byte(strings.Repeat("x", 257)))
			w.str16(nil)
			h.Body = w
		},
		"a reason of 4,097 bytes": func(h *Header) {
			w := append(writer{}, h.Body[:8]...)
			w.str16(nil)
			w.str16([]byte(strings.Repeat("x", 4097)))
			h.Body = w
		},
	},
}

func TestHeadersKeepTheRulesThatConcernThemAlone(t *testing.T) {
	var all struct {
		Entries []struct {
			Kind  string
			Bytes hexBytes
		}
	}
	vectors(t, "log.json", &all)
	of := map[string][]byte{}
	for _, entry := range all.Entries {
		of[entry.Kind] = entry.Bytes
		header, err := DecodeHeader(entry.Bytes)
		if err != nil || !bytes.Equal(header.encode(), entry.Bytes) {
			t.Fatalf("%s is read otherwise: %v", entry.Kind, err)
		}
	}
	for kind, changes := range brokenHeaders {
		for name, change := range changes {
			header, err := DecodeHeader(of[kind])
			if err != nil {
				t.Fatal(kind, err)
			}
			header.Body = slices.Clone(header.Body)
			change(header)
			if _, err := DecodeHeader(header.encode()); err == nil {
				t.Errorf("%s with %s is accepted", kind, name)
			}
		}
	}
	if _, err := DecodeHeader(append(slices.Clone(of["commit"]), 0)); err == nil {
		t.Error("a byte behind a header is accepted")
	}
	long, err := DecodeHeader(of["commit"])
	if err != nil {
		t.Fatal(err)
	}
	long.Kind, long.JournalLeaves, long.JournalRoot = 9, 0, emptyRoot
	room := headerBytesMax - len(long.encode())
	for more, accepted := range map[int]bool{room: true, room + 1: false} {
		long.Body = make([]byte, more)
		if _, err := DecodeHeader(long.encode()); (err == nil) != accepted {
			t.Errorf("a header of %d bytes: %v", headerBytesMax-room+more, err)
		}
	}
}

func TestNotesAreTextOfOneForm(t *testing.T) {
	line := signatureLineOf(testOrigin, 1, publicOf(1), make([]byte, 64))
	for name, c := range map[string]struct {
		note  string
		sound bool
	}{
		"a note":                     {"text\n\n" + line, true},
		"a tab":                      {"te\txt\n\n" + line, false},
		"a zero":                     {"te\x00xt\n\n" + line, false},
		"no UTF-8":                   {"te\xffxt\n\n" + line, false},
		"100 lines":                  {"text\n\n" + strings.Repeat(line, 100), true},
		"101 lines":                  {"text\n\n" + strings.Repeat(line, 101), false},
		"64 KiB":                     {strings.Repeat("x", noteBytesMax-2-len(line)) + "\n\n" + line, true},
		"above 64 KiB":               {strings.Repeat("x", noteBytesMax-1-len(line)) + "\n\n" + line, false},
		"a hyphen for the dash":      {"text\n\n-" + strings.TrimPrefix(line, "—"), false},
		"a signature of four bytes":  {"text\n\n— name AAAAAA==\n", false},
		"a line without a signature": {"text\n\n— name\n", false},
		"a name with a plus":         {"text\n\n— na+me AAAAAAA=\n", false},
	} {
		if _, err := parseNote([]byte(c.note)); (err == nil) != c.sound {
			t.Errorf("%s: %v", name, err)
		}
	}
	for text, sound := range map[string]bool{
		"o\n0\n": false, "o\n1\n": true, "o\n9223372036854775807\n": true, "o\n9223372036854775808\n": false, "o\n+1\n": false, "o\n\n": false,
		"o\n 1\n": false, "\n1\n": false, "o\n1\nmore\n": false,
	} {
		root := "4AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n"
		note := signedNote{text: []byte(text + root)}
		if _, err := note.checkpoint(); (err == nil) != sound {
			t.Errorf("%q: %v", text, err)
		}
	}
}
