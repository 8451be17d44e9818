package main

import (
	"strings"
	"testing"

	"coppice.dev/sdk/verify"
)

// line is a journal in short: its number, the request that made it, its place in the request, and
// the number in the lane.
type line struct {
	jsn       uint64
	request   byte
	index, of uint32
	number    uint64
}

// leaf is the canonical bytes of a leaf (docs/verification.md section 18).
func (l line) leaf() []byte {
	w := []byte{1, 0}
	w = append(w, make([]byte, 16)...)
	u64 := func(v uint64) {
		for range 8 {
			w = append(w, byte(v))
			v >>= 8
		}
	}
	u64(l.jsn)
	u64(0)
	u64(l.jsn)
	w = append(w, make([]byte, 16)...)
	w = append(w, 0)
	w = append(w, make([]byte, 32)...)
	w = append(w, 0)
	u64(l.number)
	w = append(w, byte(l.index), 0, 0, 0, byte(l.of), 0, 0, 0)
	w = append(w, l.hash()...)
	w = append(w, make([]byte, 64+32)...)
	return append(w, 129, 0, 0, 0, 0, 0)
}

func (l line) hash() []byte { return append([]byte{l.request}, make([]byte, 31)...) }

// judged gives what the books say of a ledger from journal 5 on.
func judged(t *testing.T, told []acknowledged, lines []line) string {
	t.Helper()
	books := newBooks()
	for _, answer := range told {
		text, _ := written(answer)
		if err := books.acknowledge(text); err != nil {
			return err.Error()
		}
	}
	ledger := verify.LedgerID{}
	// Pages of two journals, whatever requests they cut.
	for at := 0; at < len(lines); at += 2 {
		page := page{Ledger: ledger[:], FromJSN: 5 + uint64(at)}
		for _, line := range lines[at:min(at+2, len(lines))] {
			page.Journals = append(page.Journals, journal{JSN: line.jsn, Leaf: line.leaf()})
		}
		text, _ := written(page)
		if err := books.walk(text); err != nil {
			return err.Error()
		}
	}
	if err := books.finish(); err != nil {
		return err.Error()
	}
	return ""
}

func TestTheLedgerMustHaveEachAcknowledgedRequestOnce(t *testing.T) {
	a := acknowledged{Request: line{request: 1}.hash(), FirstJSN: 5, Count: 3}
	b := acknowledged{Request: line{request: 2}.hash(), FirstJSN: 8, Count: 1}
	elsewhere := b
	elsewhere.FirstJSN = 9
	first := []line{{5, 1, 0, 3, 4}, {6, 1, 1, 3, 4}, {7, 1, 2, 3, 4}}
	with := func(more ...line) []line { return append(append([]line{}, first...), more...) }
	for name, test := range map[string]struct {
		told  []acknowledged
		lines []line
		says  string
	}{
		"all of them":               {[]acknowledged{a, b}, with(line{8, 2, 0, 1, 5}), ""},
		"told again":                {[]acknowledged{a, a}, first, ""},
		"told at another place":     {[]acknowledged{a, b, elsewhere}, first, "acknowledged at journal 8, and then at 9"},
		"others, too":               {[]acknowledged{a}, with(line{8, 9, 0, 1, 5}), ""},
		"one is missing":            {[]acknowledged{a, b}, first, "1 acknowledged requests are not in the ledger, one of them at journal 8"},
		"one is there twice":        {[]acknowledged{a}, with(line{8, 1, 0, 1, 4}), "number 4 of a lane follows 4"},
		"a number was left out":     {[]acknowledged{a}, with(line{8, 2, 0, 1, 6}), "number 6 of a lane follows 4"},
		"a gap":                     {[]acknowledged{a, b}, with(line{9, 2, 0, 1, 5}), "journal 9 of ledger"},
		"another place":             {[]acknowledged{a, elsewhere}, with(line{8, 2, 0, 1, 5}), "acknowledged at journal 9"},
		"a part of the last one":    {[]acknowledged{a}, first[:2], "the last request is there in part"},
		"a part of one":             {[]acknowledged{a}, []line{{5, 1, 0, 3, 4}, {6, 2, 0, 1, 5}}, "the request before it is there in part"},
		"pieces":                    {[]acknowledged{a}, []line{{5, 1, 0, 3, 4}, {6, 1, 2, 3, 4}}, "its request lies in pieces"},
		"the walk begins in pieces": {nil, []line{{5, 1, 1, 3, 4}}, "its request lies in pieces"},
	} {
		if said := judged(t, test.told, test.lines); (test.says == "") != (said == "") || !strings.Contains(said, test.says) {
			t.Errorf("%s: the books say %q", name, said)
		}
	}
}
