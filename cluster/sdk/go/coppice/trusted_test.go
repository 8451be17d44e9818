package coppice

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"google.golang.org/grpc/credentials/insecure"

	v1 "coppice.dev/sdk/v1"
	"coppice.dev/sdk/verify"
)

// numbered is a draft of journals whose payloads are numbers.
func numbered(first, count int) *Draft {
	draft := new(Draft)
	for i := range count {
		draft.Add(fmt.Append(nil, first+i))
	}
	return draft
}

func TestJournalsBelowAnAnchorAreProvenByTheirPaths(t *testing.T) {
	l := membersLedger(t)
	ctx, r := limited(t), startRelay(t, l, insecure.NewCredentials())
	client := r.client(t, l)
	ledger := found(t, client, "anchored")
	bank := must(client.Author(ctx, ledger, "bank", 0, handOf("bank")))(t)
	must(bank.Append(ctx, numbered(1, 299)))(t)
	anchor := must(client.TrustLedger(ctx, ledger))(t)
	info := must(client.DescribeLedger(ctx, ledger, nil))(t)
	if anchor.Size() != 300 || anchor.Root() != info.Root {
		t.Fatalf("%d journals, %+v", anchor.Size(), info)
	}
	var kept verify.TrustedAnchor
	if err := json.Unmarshal(must(json.Marshal(anchor))(t), &kept); err != nil {
		t.Fatal(err)
	}

	// A reader of the anchor needs no key and no checkpoint.
	longest := 0
	r.onJournals = func(a *v1.GetJournalsResponse) {
		if len(a.Proof) > 0 {
			t.Error("a proof came although none was needed")
		}
		for _, journal := range a.Journals {
			longest = max(longest, len(journal.Path))
		}
	}
	calls := r.count("GetCheckpoint")
	reader := connect(t, Options{Endpoints: []string{r.endpoint}, Unverified: true})
	for from := uint64(1); from < 300; {
		journals := must(reader.JournalsBelow(ctx, &kept, from, 128, true))(t)
		for _, journal := range journals {
			if journal.Leaf.JSN != from || string(journal.Envelope.Payload) != fmt.Sprint(from) {
				t.Fatalf("%+v, not %d", journal.Leaf, from)
			}
			from++
		}
	}
	if longest != 8*32 || r.count("GetCheckpoint") != calls {
		t.Errorf("paths of %d bytes, %d checkpoints", longest, r.count("GetCheckpoint")-calls)
	}
	r.onJournals = nil
	if journals := must(reader.JournalsBelow(ctx, anchor, 300, 9, false))(t); len(journals) != 0 {
		t.Errorf("%+v", journals)
	}

	same := must(client.AdvanceAnchor(ctx, anchor))(t)
	if !bytes.Equal(same.Encode(), anchor.Encode()) {
		t.Error("an anchor has moved without the ledger")
	}
	must(bank.Append(ctx, numbered(300, 1000)))(t)
	grown := must(client.AdvanceAnchor(ctx, anchor))(t)
	fresh := must(client.TrustLedger(ctx, ledger))(t)
	if grown.Size() != 1300 || !bytes.Equal(grown.Encode(), fresh.Encode()) {
		t.Errorf("%d journals", grown.Size())
	}
	if newest := must(reader.JournalsBelow(ctx, grown, 1299, 9, true))(t); payloads(newest) != "1299" {
		t.Errorf("%+v", newest)
	}
	for _, unable := range []error{
		second(reader.TrustLedger(ctx, ledger)), second(reader.AdvanceAnchor(ctx, anchor)),
	} {
		isLie(t, "an anchor without a key to trust", anchor, unable)
	}
	if err := second(client.TrustLedger(ctx, LedgerID{1})); !errors.Is(err, NotFound) {
		t.Error(err)
	}
}

func TestTheCommandHasTheSameAnchor(t *testing.T) {
	l := membersLedger(t)
	ctx, client := limited(t), l.client(t)
	ledger := found(t, client, "anchor-file")
	bank := must(client.Author(ctx, ledger, "bank", 0, handOf("bank")))(t)
	must(bank.Append(ctx, numbered(1, 600)))(t)
	anchor := must(client.TrustLedger(ctx, ledger))(t)
	key := filepath.Join(l.Directory, "ledger.vkey")
	theirs, ours := filepath.Join(t.TempDir(), "theirs"), filepath.Join(t.TempDir(), "ours")
	l.command(t, "ledger", "anchor", "anchor-file", theirs, "--trust", "@"+key)
	if file := must(os.ReadFile(theirs))(t); !bytes.Equal(file, anchor.Encode()) {
		t.Errorf("%d bytes, and %d of the command", len(anchor.Encode()), len(file))
	}
	if err := os.WriteFile(ours, anchor.Encode(), 0o600); err != nil {
		t.Fatal(err)
	}
	l.command(t, "ledger", "verify", "anchor-file", "500", "--data", "500", "--anchor", ours)
}

func TestAnAnchorMovesOnlyToAListThatContinuesIt(t *testing.T) {
	type answer = v1.GetLedgerHashesResponse
	s := setScene(t, "lie-anchor")
	must(s.bank.Append(s.ctx, numbered(3, 700)))(t)
	var leaves []verify.Digest
	for _, journal := range s.journals(t, 0, 2, 0, false).Journals {
		leaves = append(leaves, verify.LeafHash(journal.Leaf))
	}
	cluster := must(s.client.look(s.ctx))(t).cluster
	empty := verify.NewTrustedAnchor(cluster, s.ledger)
	grow := func(hashes []verify.Digest) *verify.TrustedAnchor {
		return must(empty.Grown(uint64(len(hashes)), nil, hashes, verify.MerkleRoot(hashes)))(t)
	}
	two, whole := grow(leaves[:2]), must(s.client.TrustLedger(s.ctx, s.ledger))(t)
	moved := must(s.client.AdvanceAnchor(s.ctx, two))(t)
	if !bytes.Equal(moved.Encode(), whole.Encode()) {
		t.Fatalf("%d journals", moved.Size())
	}
	forked := grow([]verify.Digest{leaves[1], leaves[0]})
	other := verify.NewTrustedAnchor(verify.ClusterID{8}, s.ledger)
	for what, anchor := range map[string]*verify.TrustedAnchor{
		"a list that does not continue the anchor's": forked, "another cluster": other,
	} {
		got, err := s.client.AdvanceAnchor(s.ctx, anchor)
		isLie(t, what, got, err)
	}
	ask := func(request *v1.GetLedgerHashesRequest) *answer {
		return must(s.relay.ledger.GetLedgerHashes(s.ctx, request))(t)
	}
	for what, lie := range map[string]func(*answer){
		"no word of the known list": func(a *answer) {
			become(a, ask(&v1.GetLedgerHashesRequest{Ledger: identified(s.ledger), Read: at(nil)}))
		},
		"a list that was forged as a whole": func(a *answer) {
			last := len(a.Rest) - 1
			a.Rest[last] ^= 1
			a.Root = forgedRoot(t, whole, a.Rest[last])
		},
		"another ledger": func(a *answer) {
			become(a, ask(&v1.GetLedgerHashesRequest{Ledger: identified(s.other), Read: at(nil)}))
		},
		"another size":      func(a *answer) { a.Size-- },
		"no journals":       func(a *answer) { a.Size = 0 },
		"another root":      func(a *answer) { a.Root[0] ^= 1 },
		"no root":           func(a *answer) { a.Root = nil },
		"another block":     func(a *answer) { a.Blocks[40] ^= 1 },
		"no blocks":         func(a *answer) { a.Blocks = nil },
		"a block too many":  func(a *answer) { a.Blocks = append(a.Blocks, a.Rest[:32]...) },
		"a part of a hash":  func(a *answer) { a.Blocks = a.Blocks[:40] },
		"another hash":      func(a *answer) { a.Rest[0] ^= 1 },
		"a hash too few":    func(a *answer) { a.Rest = a.Rest[32:] },
		"a part of a rest":  func(a *answer) { a.Rest = a.Rest[:31] },
		"no proof":          func(a *answer) { a.Proof = nil },
		"a damaged proof":   func(a *answer) { a.Proof[len(a.Proof)/2] ^= 1 },
		"a proof of others": func(a *answer) { a.Proof = s.lineage(t, 1, nil).Proof },
	} {
		s.onHashes = func(_ *v1.GetLedgerHashesRequest, a *answer) { lie(a) }
		got, err := s.client.AdvanceAnchor(s.ctx, two)
		isLie(t, what, got, err)
	}
}

func TestAnAnchorMovesByAFewBlocksAtATime(t *testing.T) {
	s := setScene(t, "anchor-parts")
	small := must(s.client.TrustLedger(s.ctx, s.ledger))(t)
	must(s.bank.Append(s.ctx, numbered(3, 700)))(t)
	whole := must(s.client.TrustLedger(s.ctx, s.ledger))(t)
	calls := s.count("GetLedgerHashes")
	s.onHashes = func(request *v1.GetLedgerHashesRequest, a *v1.GetLedgerHashesResponse) {
		if a.Size/verify.BlockJournals-request.FromBlock > 1 {
			a.Blocks, a.Rest = a.Blocks[:32], nil
		}
	}
	parts := must(s.client.AdvanceAnchor(s.ctx, small))(t)
	if !bytes.Equal(parts.Encode(), whole.Encode()) || s.count("GetLedgerHashes")-calls != 2 {
		t.Errorf("%d journals after %d calls", parts.Size(), s.count("GetLedgerHashes")-calls)
	}
	// Answers without any block end at once.
	calls = s.count("GetLedgerHashes")
	s.onHashes = func(_ *v1.GetLedgerHashesRequest, a *v1.GetLedgerHashesResponse) { a.Blocks = nil }
	got, err := s.client.AdvanceAnchor(s.ctx, small)
	isLie(t, "no blocks, again and again", got, err)
	if s.count("GetLedgerHashes")-calls != 1 {
		t.Errorf("%d calls", s.count("GetLedgerHashes")-calls)
	}
}

// forgedRoot is the root of an anchor's list with another last byte of its hashes.
func forgedRoot(t *testing.T, anchor *verify.TrustedAnchor, last byte) []byte {
	t.Helper()
	encoded := anchor.Encode()
	encoded[len(encoded)-1] = last
	root := must(verify.DecodeTrustedAnchor(encoded))(t).Root()
	return root[:]
}

func TestBelowAnAnchorOnlyItsOwnJournalsAreBelieved(t *testing.T) {
	type answer = v1.GetJournalsResponse
	s := setScene(t, "lie-below")
	must(s.bank.Append(s.ctx, numbered(3, 40)))(t)
	anchor := must(s.client.TrustLedger(s.ctx, s.ledger))(t)
	reader := connect(t, Options{Endpoints: []string{s.endpoint}, Unverified: true})
	must(reader.JournalsBelow(s.ctx, anchor, 1, 2, true))(t)
	below := func(ledger LedgerID, jsn uint64, size uint64) *v1.LedgerJournal {
		return must(s.relay.ledger.GetJournals(s.ctx, &v1.GetJournalsRequest{
			Ledger: identified(ledger), FromJsn: jsn, Limit: 1, WantPayload: true, AnchorSize: size,
		}))(t).Journals[0]
	}
	third, elsewhere := below(s.ledger, 3, anchor.Size()), below(s.other, 0, 1)
	second := uint64(2)
	lies := map[string]func(*answer){
		"another order":      func(a *answer) { slices.Reverse(a.Journals) },
		"one journal twice":  func(a *answer) { a.Journals[1] = a.Journals[0] },
		"one journal less":   func(a *answer) { a.Journals = a.Journals[:1] },
		"no journals":        func(a *answer) { a.Journals = nil },
		"a true one more":    func(a *answer) { a.Journals = append(a.Journals, third) },
		"more journals":      func(a *answer) { a.Journals = append(a.Journals, a.Journals...) },
		"a damaged leaf":     func(a *answer) { a.Journals[1].Leaf[60] ^= 1 },
		"another number":     func(a *answer) { a.Journals[1].Jsn++ },
		"a path too long":    func(a *answer) { a.Journals[1].Path = make([]byte, 9*32) },
		"no path":            func(a *answer) { a.Journals[1].Path = nil },
		"a damaged path":     func(a *answer) { a.Journals[1].Path[70] ^= 1 },
		"a damaged envelope": func(a *answer) { a.Journals[0].Envelope[40] ^= 1 },
		"no envelope":        func(a *answer) { a.Journals[0].Envelope = nil },
		"withheld content":   func(a *answer) { a.Journals[0].OccultedBy = &second },
		"another ledger":     func(a *answer) { a.Journals[0] = elsewhere },
	}
	for name, client := range map[string]*Client{"verifying": s.client, "unverified": reader} {
		for what, lie := range lies {
			s.onJournals = lie
			got, err := client.JournalsBelow(s.ctx, anchor, 1, 2, true)
			isLie(t, name+": "+what, got, err)
			// The first journal alone is what some of these lies leave as it was.
			if what != "one journal less" && what != "no journals" {
				continue
			}
			verdict, err := client.VerifyJournalBelow(s.ctx, anchor, JournalClaim{Ledger: s.ledger, JSN: 3})
			if what == "no journals" {
				isLie(t, name+": "+what, verdict, err)
			}
		}
	}
	s.onJournals, s.noJournals = nil, refusedAsPurged(t)
	got, err := s.client.JournalsBelow(s.ctx, anchor, 1, 2, true)
	isLie(t, "a purge that never was", got, err)
	// Without a key, a refusal is the coordinator's word, and no journal.
	if _, err := reader.JournalsBelow(s.ctx, anchor, 1, 2, true); !errors.Is(err, PurgedJournal) {
		t.Error(err)
	}
}

func TestContentBelowAnAnchorIsMissingOnlyIfAnOrderHasOccultedIt(t *testing.T) {
	l := membersLedger(t)
	ctx, r := limited(t), startRelay(t, l, insecure.NewCredentials())
	client := r.client(t, l)
	founding := foundingOf("anchor-occult")
	founding.Policy.Occult = 1
	court := granted("court", verify.RoleRegulator|verify.RoleReader)
	founding.Members = append(founding.Members, court)
	ledger := must(client.FoundLedger(ctx, founding, "bank", handOf("bank")))(t).Ledger
	bank := must(client.Author(ctx, ledger, "bank", 0, handOf("bank")))(t)
	must(bank.Append(ctx, new(Draft).Add([]byte("secret")).Add([]byte("open"))))(t)
	anchor := must(client.TrustLedger(ctx, ledger))(t)
	file := must(client.PrepareOccult(ctx, ledger, 100, 1))(t)
	if err := file.Approve("court", handOf("court")); err != nil {
		t.Fatal(err)
	}
	order := must(bank.Append(ctx, must(bank.OrderDraft(file))(t)))(t).FirstJSN
	reader := connect(t, Options{Endpoints: []string{l.Endpoint}, Unverified: true})
	claims := map[string]JournalClaim{
		FailedOcculted: {Ledger: ledger, JSN: 1, Payload: []byte("secret")},
		FailedPayload:  {Ledger: ledger, JSN: 2, Payload: []byte("secret")},
		"":             {Ledger: ledger, JSN: 1, AnyPayload: true},
	}
	for failed, claim := range claims {
		verdicts := []*JournalVerdict{
			must(client.VerifyJournalBelow(ctx, anchor, claim))(t),
			must(client.VerifyJournal(ctx, claim))(t),
			must(client.CoordinatorVerdict(ctx, claim))(t),
		}
		for i, by := range []VerdictBy{ByAnchor, ByProof, ByCoordinator} {
			verdict := verdicts[i]
			occulted := failed == FailedOcculted && by != ByCoordinator
			if verdict.By != by || verdict.Failed != failed || verdict.Valid() != (failed == "") ||
				verdict.Leaf.JSN != claim.JSN || (verdict.OccultedBy != nil) != occulted ||
				occulted && *verdict.OccultedBy != order {
				t.Errorf("%q by %s: %+v", failed, by, verdict)
			}
		}
	}
	// A mark alone is not enough: the order has to name the journal.
	occulted := must(client.JournalsBelow(ctx, anchor, 1, 1, true))(t)
	occulted[0].Leaf.Number++
	if err := client.checkMarks(ctx, ledger, occulted); err == nil {
		t.Error("an order occults a journal with another leaf")
	}
	// Why content is missing needs a proof at head.
	got, err := reader.JournalsBelow(ctx, anchor, 1, 2, true)
	isLie(t, "missing content without a key to trust", got, err)
	r.onRecords = func(a *v1.GetLedgerRecordsResponse) { a.Records[0].Value = nil }
	got, err = client.JournalsBelow(ctx, anchor, 1, 2, true)
	isLie(t, "a mark that is left out", got, err)
	by := order - 1
	r.onRecords, r.onJournals = nil, func(a *v1.GetJournalsResponse) { a.Journals[0].OccultedBy = &by }
	got, err = client.JournalsBelow(ctx, anchor, 1, 2, true)
	isLie(t, "another order", got, err)
}
