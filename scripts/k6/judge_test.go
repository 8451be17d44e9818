package main

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"coppice.dev/sdk/verify"
)

// vectors are proof files that the product publishes, with the key that has signed them.
type vectors struct {
	VKey  string `json:"vkey"`
	Cases []struct {
		Name string `json:"name"`
		File string `json:"file"`
	} `json:"cases"`
}

func readVectors(t *testing.T) vectors {
	t.Helper()
	text, err := os.ReadFile("../../cluster/verify/vectors/ledgers.json")
	if err != nil {
		t.Fatal(err)
	}
	found, err := read[vectors](text)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// shown gives a file, and what it says.
func (v *vectors) shown(t *testing.T, name string) ([]byte, *verify.Verified) {
	t.Helper()
	for _, one := range v.Cases {
		if one.Name != name {
			continue
		}
		file, err := hex.DecodeString(one.File)
		if err != nil {
			t.Fatal(err)
		}
		key, err := verify.ParseVKey(v.VKey)
		if err != nil {
			t.Fatal(err)
		}
		shown, err := verify.Verify(file, key, nil)
		if err != nil {
			t.Fatal(err)
		}
		return file, shown
	}
	t.Fatalf("there is no case %q", name)
	return nil, nil
}

// leafOf gives the bytes of a leaf in a file.
func leafOf(t *testing.T, file []byte, leaf *verify.Leaf) []byte {
	t.Helper()
	head := append([]byte{1, leaf.Kind}, leaf.Ledger[:]...)
	for at := range file {
		if !bytes.HasPrefix(file[at:], head) {
			continue
		}
		for end := at + 200; end <= min(len(file), at+1000); end++ {
			if verify.LeafHash(file[at:end]) == leaf.Hash() {
				return file[at:end]
			}
		}
	}
	t.Fatal("the file does not show the leaf")
	return nil
}

func toldBy(t *testing.T, file []byte, shown []verify.ProvenJournal) (journals []journal) {
	t.Helper()
	for _, one := range shown {
		told := journal{JSN: one.Leaf.JSN, Leaf: leafOf(t, file, one.Leaf)}
		if one.Envelope != nil {
			told.Envelope = sealedAgain(t, one.Envelope)
		}
		journals = append(journals, told)
	}
	return journals
}

func sealedAgain(t *testing.T, envelope *verify.Envelope) []byte {
	t.Helper()
	encoded, err := envelope.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return encoded
}

// asked posts a question and its answer, and gives the status and the text of the reply.
func asked(t *testing.T, judge *judge, kind string, post any) (int, string) {
	t.Helper()
	body, err := json.Marshal(post)
	if err != nil {
		t.Fatal(err)
	}
	reply := httptest.NewRecorder()
	judge.routes().ServeHTTP(reply, httptest.NewRequest(http.MethodPost, "/"+kind, bytes.NewReader(body)))
	return reply.Code, reply.Body.String()
}

// bench is a judge and honest posts.
type bench struct {
	t     *testing.T
	judge *judge
}

func newBench(t *testing.T, vectors *vectors) *bench {
	t.Helper()
	judge, err := newJudge(vectors.VKey, filepath.Join(t.TempDir(), "evidence.json"))
	if err != nil {
		t.Fatal(err)
	}
	return &bench{t, judge}
}

func (b *bench) believes(kind string, post any) {
	b.t.Helper()
	if code, said := asked(b.t, b.judge, kind, post); code != http.StatusNoContent {
		b.t.Errorf("an honest answer is refused: %d %s", code, said)
	}
}

func (b *bench) refuses(kind, words string, post any) {
	b.t.Helper()
	code, said := asked(b.t, b.judge, kind, post)
	if code != http.StatusUnprocessableEntity || !strings.Contains(said, words) {
		b.t.Errorf("a lie gets %d %q, not %q", code, said, words)
	}
}

// altered gives another post, and leaves this one as it is.
func altered[T any](post T, change func(*T)) T {
	change(&post)
	return post
}

func TestAReceiptIsHeldToTheRequest(t *testing.T) {
	vectors := readVectors(t)
	bench := newBench(t, &vectors)
	file, shown := vectors.shown(t, "compact: the founding")
	one := shown.Journals.Journals[0]
	at := stamp{one.Leaf.Stamp.Epoch, one.Leaf.Stamp.Version}
	envelope := sealedAgain(t, one.Envelope)
	honest := appendPost{
		Signed: one.Signed, Signature: one.Leaf.Signature[:], Items: []item{{Kind: 1, Envelope: envelope}},
		Ledger: shown.Journals.Ledger[:], Stamp: at, Receipt: file,
	}
	bench.believes("append", honest)
	other := "the receipt is for other journals than the answer"
	bench.refuses("append", other, altered(honest, func(p *appendPost) { p.FirstJSN = 1 }))
	bench.refuses("append", other, altered(honest, func(p *appendPost) { p.Stamp.Version++ }))
	bench.refuses("append", other, altered(honest, func(p *appendPost) { p.Ledger = make([]byte, 16) }))
	bench.refuses("append", other, altered(honest, func(p *appendPost) { p.Items = append(p.Items, item{}) }))
	unsigned := "does not show the journals as they were signed"
	bench.refuses("append", unsigned, altered(honest, func(p *appendPost) { p.Signature = make([]byte, 64) }))
	bench.refuses("append", unsigned, altered(honest, func(p *appendPost) { p.Items = []item{{Envelope: []byte("other")}} }))
	bench.refuses("append", "format", altered(honest, func(p *appendPost) { p.Receipt = nil }))
	flipped := bytes.Clone(file)
	flipped[len(flipped)/2] ^= 1
	bench.refuses("append", "verify: ", altered(honest, func(p *appendPost) { p.Receipt = flipped }))
	if kept, err := os.ReadFile(bench.judge.evidence); err != nil || !strings.Contains(string(kept), `"firstJsn":"1"`) {
		t.Errorf("the first lie was not kept: %s %v", kept, err)
	}
	if bench.judge.counts.Commits != 1 || bench.judge.counts.Bad != 8 {
		t.Errorf("the counts are %+v", bench.judge.counts)
	}
}

func TestJournalsAreHeldToTheQuestion(t *testing.T) {
	vectors := readVectors(t)
	bench := newBench(t, &vectors)
	file, shown := vectors.shown(t, "compact: the founding")
	about := shown.Journals
	honest := journalsPost{
		readPost: readPost{
			Ledger: about.Ledger[:], WantPayload: true, WantRequest: true, Proof: file,
			Journals: toldBy(t, file, about.Journals),
		},
		Limit: 10, Size: about.Size, Root: about.Root[:],
	}
	bench.believes("journals", honest)
	bench.refuses("journals", "more or fewer", altered(honest, func(p *journalsPost) { p.Size++ }))
	bench.refuses("journals", "more or fewer", altered(honest, func(p *journalsPost) { p.Journals = nil }))
	bench.refuses("journals", "disagree", altered(honest, func(p *journalsPost) { p.Root = make([]byte, 32) }))
	bench.refuses("journals", "another ledger", altered(honest, func(p *journalsPost) { p.Ledger = make([]byte, 16) }))
	bench.refuses("journals", "other journals", altered(honest, func(p *journalsPost) { p.FromJSN, p.Limit, p.Size = 3, 1, 4 }))
	bench.refuses("journals", "continues another state", altered(honest, func(p *journalsPost) { p.KnownSize = 1 }))
	twisted := altered(honest.Journals[0], func(one *journal) { one.Leaf = append([]byte{2}, one.Leaf[1:]...) })
	bench.refuses("journals", "disagree", altered(honest, func(p *journalsPost) { p.Journals = []journal{twisted} }))
	withheld := altered(honest.Journals[0], func(one *journal) { one.Envelope = nil })
	bench.refuses("journals", "withheld", altered(honest, func(p *journalsPost) { p.Journals = []journal{withheld} }))
	order := "7"
	occulted := altered(honest.Journals[0], func(one *journal) { one.OccultedBy = &order })
	bench.refuses("journals", "withheld", altered(honest, func(p *journalsPost) { p.Journals = []journal{occulted} }))
}

func TestALineageIsHeldToTheQuestion(t *testing.T) {
	vectors := readVectors(t)
	bench := newBench(t, &vectors)
	file, shown := vectors.shown(t, "compact: a lineage")
	about := shown.Lineage
	var clue []byte
	for _, one := range about.Journals[0].Envelope.Clues {
		if verify.ClueHash(about.Ledger, one) == about.Clue {
			clue = one
		}
	}
	honest := lineagePost{
		readPost: readPost{
			Ledger: about.Ledger[:], WantPayload: true, WantRequest: true, Proof: file,
			Journals: toldBy(t, file, about.Journals),
		},
		Clue: clue, Count: about.Count, ReadAt: stamp{shown.Header.Epoch, shown.Header.Version},
	}
	bench.believes("lineage", honest)
	bench.believes("lineage", altered(honest, func(p *lineagePost) { p.Newest = about.Count + 1 }))
	bench.refuses("lineage", "another clue", altered(honest, func(p *lineagePost) { p.Clue = []byte("other") }))
	bench.refuses("lineage", "another number of journals", altered(honest, func(p *lineagePost) { p.Newest = 2 }))
	bench.refuses("lineage", "disagree", altered(honest, func(p *lineagePost) { p.Count-- }))
	bench.refuses("lineage", "disagree", altered(honest, func(p *lineagePost) { p.ReadAt.Version++ }))
	bench.refuses("lineage", "disagree", altered(honest, func(p *lineagePost) { p.Journals = p.Journals[1:] }))
	// A file without requests and payloads is none for one who asked for them.
	file, shown = vectors.shown(t, "compact: the newest of a lineage")
	newest := altered(honest, func(p *lineagePost) {
		p.Proof, p.Newest, p.Journals = file, 2, toldBy(t, file, shown.Lineage.Journals)
	})
	bench.refuses("lineage", "does not show what the author signed", newest)
	bench.refuses("lineage", "withheld", altered(newest, func(p *lineagePost) { p.WantRequest = false }))
	bench.believes("lineage", altered(newest, func(p *lineagePost) { p.WantRequest, p.WantPayload = false, false }))
}

func TestTwoRootsOfOneSizeAreALie(t *testing.T) {
	vectors := readVectors(t)
	bench := newBench(t, &vectors)
	file, shown := vectors.shown(t, "compact: the founding")
	about := shown.Journals
	honest := journalsPost{
		readPost: readPost{Ledger: about.Ledger[:], Journals: toldBy(t, file, about.Journals), Proof: file},
		Limit:    1, Size: about.Size, Root: about.Root[:],
	}
	bench.judge.roots[shown.Checkpoint.Size] = verify.Digest{1}
	bench.refuses("journals", "two roots", honest)
}
