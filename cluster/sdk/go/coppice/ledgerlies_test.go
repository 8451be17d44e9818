package coppice

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	v1 "coppice.dev/sdk/v1"
	"coppice.dev/sdk/verify"
)

// scene has a ledger of three journals behind a relay that may lie, and another ledger.
type scene struct {
	*relay
	ctx           context.Context
	cluster       *ledger
	client        *Client
	ledger, other LedgerID
	name          string
	bank          *Author
	// before is the version before the newest journal.
	before Stamp
}

func setScene(t *testing.T, name string) *scene {
	t.Helper()
	l := membersLedger(t)
	s := &scene{relay: startRelay(t, l, insecure.NewCredentials()), ctx: limited(t), cluster: l, name: name}
	s.client = s.relay.client(t, l)
	s.ledger, s.other = found(t, s.client, name), found(t, s.client, name+"-other")
	s.bank = must(s.client.Author(s.ctx, s.ledger, "bank", 0, handOf("bank")))(t)
	s.before = s.append(t, "first").Stamp
	s.append(t, "second")
	return s
}

func (s *scene) append(t *testing.T, data string) *Appended {
	t.Helper()
	return must(s.bank.Append(s.ctx, new(Draft).Add([]byte(data), []byte("lot"))))(t)
}

// at asks for a proof in a version; nil is head.
func at(stamp *Stamp) *v1.ReadOptions {
	options := &v1.ReadOptions{WantProof: true}
	if stamp != nil {
		options.At = toStamp(*stamp)
	}
	return options
}

func (s *scene) lineage(t *testing.T, newest uint32, stamp *Stamp) *v1.GetLineageResponse {
	t.Helper()
	return must(s.relay.ledger.GetLineage(s.ctx, &v1.GetLineageRequest{
		Ledger: identified(s.ledger), Clue: []byte("lot"), Newest: newest, WantPayload: true, WantRequest: true,
		Read: at(stamp),
	}))(t)
}

func (s *scene) journals(t *testing.T, from uint64, limit uint32, known uint64, signed bool) *v1.GetJournalsResponse {
	t.Helper()
	return must(s.relay.ledger.GetJournals(s.ctx, &v1.GetJournalsRequest{
		Ledger: identified(s.ledger), FromJsn: from, Limit: limit, WantPayload: true, WantRequest: signed,
		KnownSize: known, Read: at(nil),
	}))(t)
}

// become makes an answer another one.
func become[M proto.Message](answer, other M) {
	proto.Reset(answer)
	proto.Merge(answer, other)
}

// isLie checks that an answer was refused for its proof.
func isLie[T any](t *testing.T, what string, answer T, err error) {
	t.Helper()
	if !errors.Is(err, ErrUntrusted) {
		t.Errorf("%s: %+v, %v", what, answer, err)
	}
}

func TestALineageIsBelievedOnlyWholeAndAtHead(t *testing.T) {
	s := setScene(t, "lie-lineage")
	read := func(newest uint32) (*Lineage, error) {
		return s.client.Lineage(s.ctx, s.ledger, []byte("lot"), newest, wholeJournals)
	}
	honest := must(read(0))(t)
	if payloads(honest.Journals) != "second,first" {
		t.Fatalf("%+v", honest)
	}
	for what, lie := range map[string]func(*v1.GetLineageResponse){
		"a version of before, which has fewer": func(a *v1.GetLineageResponse) { become(a, s.lineage(t, 0, &s.before)) },
		"the newest for all":                   func(a *v1.GetLineageResponse) { become(a, s.lineage(t, 1, nil)) },
		"the newest, counted as all": func(a *v1.GetLineageResponse) {
			become(a, s.lineage(t, 1, nil))
			a.Count = 1
		},
		"one journal left out": func(a *v1.GetLineageResponse) { a.Journals, a.Count = a.Journals[:1], 1 },
		"one journal less":     func(a *v1.GetLineageResponse) { a.Journals = a.Journals[:1] },
		"one journal twice":    func(a *v1.GetLineageResponse) { a.Journals[1] = a.Journals[0] },
		"another order":        func(a *v1.GetLineageResponse) { slices.Reverse(a.Journals) },
		"another payload":      func(a *v1.GetLineageResponse) { a.Journals[0].Envelope = a.Journals[1].Envelope },
		"no payload":           func(a *v1.GetLineageResponse) { a.Journals[0].Envelope = nil },
		"another number":       func(a *v1.GetLineageResponse) { a.Journals[0].Jsn++ },
		"a damaged leaf":       func(a *v1.GetLineageResponse) { a.Journals[0].Leaf[50] ^= 1 },
		"another version":      func(a *v1.GetLineageResponse) { a.ReadAt.Version-- },
		"no proof":             func(a *v1.GetLineageResponse) { a.Proof = nil },
		"a damaged proof":      func(a *v1.GetLineageResponse) { a.Proof[len(a.Proof)/2] ^= 1 },
		"the proof of journals": func(a *v1.GetLineageResponse) {
			a.Proof = s.journals(t, 1, 2, 0, true).Proof
		},
	} {
		s.onLineage = lie
		got, err := read(0)
		isLie(t, what, got, err)
	}
	s.onLineage = func(a *v1.GetLineageResponse) { become(a, s.lineage(t, 0, nil)) }
	got, err := read(1)
	isLie(t, "all for the newest", got, err)
	// The answer was true before the newest journal was appended.
	s.onLineage = nil
	old := s.lineage(t, 0, nil)
	s.append(t, "third")
	s.onLineage = func(a *v1.GetLineageResponse) { become(a, old) }
	got, err = read(0)
	isLie(t, "what was head before", got, err)
	s.onLineage = func(a *v1.GetLineageResponse) {
		other := must(s.relay.ledger.GetLineage(s.ctx, &v1.GetLineageRequest{
			Ledger: identified(s.ledger), Clue: []byte("tol"), Read: at(nil),
		}))(t)
		become(a, other)
	}
	got, err = read(0)
	isLie(t, "the lineage of another clue, which has none", got, err)
}

func TestJournalsAreBelievedOnlyAsTheyWereSignedAndIfTheListHasOnlyGrown(t *testing.T) {
	s := setScene(t, "lie-journals")
	read := func(from uint64, since *LedgerMark) (*JournalPage, error) {
		return s.client.JournalPage(s.ctx, s.ledger, from, 9, wholeJournals, since)
	}
	all := must(read(0, nil))(t)
	if payloads(all.Journals[1:]) != "first,second" {
		t.Fatalf("%+v", all)
	}
	var leaves []verify.Digest
	for _, journal := range s.journals(t, 0, 2, 0, true).Journals {
		leaves = append(leaves, verify.LeafHash(journal.Leaf))
	}
	known := LedgerMark{Size: 2, Root: verify.MerkleRoot(leaves)}
	must(read(2, &known))(t)
	forked := LedgerMark{Size: 2, Root: verify.Digest{1}}
	got, err := read(2, &forked)
	isLie(t, "another known list", got, err)
	one := func(from uint64) *v1.GetJournalsResponse { return s.journals(t, from, 1, 0, true) }
	for what, lie := range map[string]func(*v1.GetJournalsResponse){
		"no word of the known list": func(a *v1.GetJournalsResponse) { become(a, one(2)) },
		"another known size":        func(a *v1.GetJournalsResponse) { become(a, s.journals(t, 2, 1, 1, true)) },
	} {
		s.onJournals = lie
		got, err := read(2, &known)
		isLie(t, what, got, err)
	}
	for what, lie := range map[string]func(*v1.GetJournalsResponse){
		"other journals":       func(a *v1.GetJournalsResponse) { become(a, one(1)) },
		"a larger size":        func(a *v1.GetJournalsResponse) { a.Size = 9 },
		"no journals":          func(a *v1.GetJournalsResponse) { a.Size, a.Journals = 2, nil },
		"another root":         func(a *v1.GetJournalsResponse) { a.Root[0] ^= 1 },
		"no root":              func(a *v1.GetJournalsResponse) { a.Root = nil },
		"another leaf":         func(a *v1.GetJournalsResponse) { a.Journals[0].Leaf = one(1).Journals[0].Leaf },
		"another journal":      func(a *v1.GetJournalsResponse) { a.Journals[0] = one(1).Journals[0] },
		"a damaged leaf":       func(a *v1.GetJournalsResponse) { a.Journals[0].Leaf[60] ^= 1 },
		"a damaged envelope":   func(a *v1.GetJournalsResponse) { a.Journals[0].Envelope[40] ^= 1 },
		"the proof of another": func(a *v1.GetJournalsResponse) { a.Proof = one(1).Proof },
		"no signature":         func(a *v1.GetJournalsResponse) { a.Proof = s.journals(t, 2, 1, 0, false).Proof },
		"no proof":             func(a *v1.GetJournalsResponse) { a.Proof = nil },
		"a damaged proof":      func(a *v1.GetJournalsResponse) { a.Proof[len(a.Proof)-1] ^= 1 },
		"the proof of a lineage": func(a *v1.GetJournalsResponse) {
			a.Proof = s.lineage(t, 1, nil).Proof
		},
		"another ledger": func(a *v1.GetJournalsResponse) {
			become(a, must(s.relay.ledger.GetJournals(s.ctx, &v1.GetJournalsRequest{
				Ledger: identified(s.other), Limit: 1, WantPayload: true, WantRequest: true, Read: at(nil),
			}))(t))
		},
	} {
		s.onJournals = lie
		got, err := read(2, nil)
		isLie(t, what, got, err)
	}
	// Pages must continue each other.
	s.onJournals = func(a *v1.GetJournalsResponse) { a.Size-- }
	for _, err := range s.client.LedgerJournals(s.ctx, s.ledger, 0, JournalRead{}) {
		isLie(t, "a shorter list", 0, err)
	}
	// An answer that was true before is refused once the client has seen a newer log.
	s.onJournals = nil
	old := one(2)
	s.append(t, "third")
	s.onJournals = func(a *v1.GetJournalsResponse) { become(a, old) }
	got, err = read(2, nil)
	isLie(t, "an older list than was seen", got, err)
}

func (s *scene) description(t *testing.T, which *v1.LedgerName, stamp *Stamp) *v1.DescribeLedgerResponse {
	t.Helper()
	return must(s.relay.ledger.DescribeLedger(s.ctx, &v1.DescribeLedgerRequest{Ledger: which, Read: at(stamp)}))(t)
}

func (s *scene) member(t *testing.T, name string, stamp *Stamp) *v1.GetMemberResponse {
	t.Helper()
	return must(s.relay.ledger.GetMember(
		s.ctx, &v1.GetMemberRequest{Ledger: identified(s.ledger), Member: name, Read: at(stamp)}))(t)
}

func TestWhatALedgerIsIsBelievedOnlyAtHead(t *testing.T) {
	s := setScene(t, "lie-describe")
	if info := must(s.client.FindLedger(s.ctx, s.name, nil))(t); info.Size != 3 || info.ID != s.ledger {
		t.Fatalf("%+v", info)
	}
	if info := must(s.client.DescribeLedger(s.ctx, s.ledger, nil))(t); info.Size != 3 {
		t.Fatalf("%+v", info)
	}
	other := func() *v1.DescribeLedgerResponse { return s.description(t, named(s.name+"-other"), nil) }
	for what, lie := range map[string]func(*v1.DescribeLedgerResponse){
		"another ledger of that name": func(a *v1.DescribeLedgerResponse) { become(a, other()) },
		"another ledger's id":         func(a *v1.DescribeLedgerResponse) { a.Id = s.other[:] },
		"no id":                       func(a *v1.DescribeLedgerResponse) { a.Id = nil },
		"an older version": func(a *v1.DescribeLedgerResponse) {
			become(a, s.description(t, named(s.name), &s.before))
		},
		"another version's name":  func(a *v1.DescribeLedgerResponse) { a.ReadAt.Version-- },
		"another size":            func(a *v1.DescribeLedgerResponse) { a.Size = 2 },
		"another root":            func(a *v1.DescribeLedgerResponse) { a.Root = bytes.Repeat([]byte{7}, 32) },
		"a purge":                 func(a *v1.DescribeLedgerResponse) { a.Purged = 1 },
		"another founding":        func(a *v1.DescribeLedgerResponse) { a.Founding = other().Founding },
		"a founding that is none": func(a *v1.DescribeLedgerResponse) { a.Founding = []byte{1} },
		"no proof":                func(a *v1.DescribeLedgerResponse) { a.Proof = nil },
		"a damaged proof":         func(a *v1.DescribeLedgerResponse) { a.Proof[len(a.Proof)/2] ^= 1 },
		"a proof without the name": func(a *v1.DescribeLedgerResponse) {
			become(a, s.description(t, identified(s.ledger), nil))
		},
	} {
		s.onDescribe = lie
		got, err := s.client.FindLedger(s.ctx, s.name, nil)
		isLie(t, what, got, err)
	}
	s.onDescribe = func(a *v1.DescribeLedgerResponse) { become(a, other()) }
	got, err := s.client.DescribeLedger(s.ctx, s.ledger, nil)
	isLie(t, "another ledger's description", got, err)
	s.onDescribe = func(a *v1.DescribeLedgerResponse) { become(a, s.description(t, identified(s.ledger), nil)) }
	got, err = s.client.DescribeLedger(s.ctx, s.ledger, &Read{At: &s.before})
	isLie(t, "head for an older version", got, err)
}

func TestWhoAMemberIsIsBelievedOnlyAtHead(t *testing.T) {
	s := setScene(t, "lie-member")
	read := func(name string) (*verify.Member, error) { return s.client.LedgerMember(s.ctx, s.ledger, name) }
	if record := must(read("bank"))(t); record.Newest(0) != 3 {
		t.Fatalf("%+v", record)
	}
	if record := must(read("shop"))(t); record != nil {
		t.Fatalf("%+v", record)
	}
	for what, lie := range map[string]func(*v1.GetMemberResponse){
		"a member that is hidden": func(a *v1.GetMemberResponse) { become(a, s.member(t, "shop", nil)) },
		"another member":          func(a *v1.GetMemberResponse) { become(a, s.member(t, "mill", nil)) },
		"an older record":         func(a *v1.GetMemberResponse) { become(a, s.member(t, "bank", &s.before)) },
		"another record":          func(a *v1.GetMemberResponse) { a.Record = s.member(t, "bank", &s.before).Record },
		"no record":               func(a *v1.GetMemberResponse) { a.Record = nil },
		"no proof":                func(a *v1.GetMemberResponse) { a.Proof = nil },
		"a damaged proof":         func(a *v1.GetMemberResponse) { a.Proof[len(a.Proof)/2] ^= 1 },
		"the proof of a lineage":  func(a *v1.GetMemberResponse) { a.Proof = s.lineage(t, 1, nil).Proof },
	} {
		s.onMember = lie
		got, err := read("bank")
		isLie(t, what, got, err)
		author, err := s.client.Author(s.ctx, s.ledger, "bank", 0, handOf("bank"))
		isLie(t, what, author, err)
	}
	s.onMember = func(a *v1.GetMemberResponse) { a.Record = s.member(t, "bank", nil).Record }
	got, err := read("shop")
	isLie(t, "a member that is not there", got, err)
	// A record without its value does not prove that the key is absent.
	key := s.ledger.MemberKey(verify.MemberIDOf("bank"))
	shown := &verify.Query{Keys: []verify.Answer{{Key: key, Record: &verify.Record{Key: key}}}}
	if _, _, err := provenValue(&verify.Verified{Query: shown}, key); err == nil {
		t.Error("a record without its value is taken for one that is not there")
	}
	if _, _, err := provenValue(&verify.Verified{Query: shown}, key[1:]); err == nil {
		t.Error("a key that is not shown is taken for one that is not there")
	}
}

func TestAnAppendIsBelievedOnlyByTheReceiptOfThisRequest(t *testing.T) {
	s := setScene(t, "lie-append")
	request := must(s.bank.Sign(new(Draft).Add([]byte("third"), []byte("lot")).Add([]byte("fourth"))))(t)
	send := func() (*Appended, error) { return s.client.AppendRequest(s.ctx, request) }
	honest := must(send())(t)
	if honest.FirstJSN != 3 || honest.Replayed {
		t.Fatalf("%+v", honest)
	}
	receipt := func(from uint64, limit uint32, signed bool) []byte {
		return s.journals(t, from, limit, 0, signed).Proof
	}
	for what, lie := range map[string]func(*v1.AppendResponse){
		"no receipt":                        func(a *v1.AppendResponse) { a.Receipt = nil },
		"a damaged receipt":                 func(a *v1.AppendResponse) { a.Receipt[len(a.Receipt)/2] ^= 1 },
		"a receipt that shows no signature": func(a *v1.AppendResponse) { a.Receipt = receipt(3, 2, false) },
		"the receipt of another request":    func(a *v1.AppendResponse) { a.Receipt = receipt(2, 1, true) },
		"the receipt of a part":             func(a *v1.AppendResponse) { a.Receipt = receipt(3, 1, true) },
		"the receipt of more":               func(a *v1.AppendResponse) { a.Receipt = receipt(2, 3, true) },
		"a lineage for a receipt":           func(a *v1.AppendResponse) { a.Receipt = s.lineage(t, 1, nil).Proof },
		"another number":                    func(a *v1.AppendResponse) { a.FirstJsn = 4 },
		"another version":                   func(a *v1.AppendResponse) { a.Stamp = &v1.Stamp{Version: 1} },
		"no version":                        func(a *v1.AppendResponse) { a.Stamp = nil },
		"another ledger":                    func(a *v1.AppendResponse) { a.Ledger = s.other[:] },
		"no ledger":                         func(a *v1.AppendResponse) { a.Ledger = nil },
		"another answer with its receipt":   func(a *v1.AppendResponse) { a.FirstJsn, a.Receipt = 2, receipt(2, 1, true) },
	} {
		s.onAppend = func(_ *v1.AppendRequest, a *v1.AppendResponse) error { lie(a); return nil }
		got, err := send()
		isLie(t, what, got, err)
		if !OutcomeUnknown(err) {
			t.Errorf("%s: it may well be appended", what)
		}
	}
	s.onAppend = nil
	// These requests differ in unsigned parts, or claim another signature.
	for what, change := range map[string]func(*verify.Request){
		"another signature": func(r *verify.Request) { r.Signature[0] ^= 1 },
		"other items":       func(r *verify.Request) { r.Items = slices.Clone(r.Items[:1]) },
	} {
		other := *request
		change(&other)
		told := *honest
		if err := s.client.checkAppend(s.ctx, s.client.known(), &other, &told); err == nil {
			t.Errorf("%s: the receipt is taken", what)
		}
	}
	s.onAppend = func(_ *v1.AppendRequest, a *v1.AppendResponse) error {
		a.Ledger = s.other[:]
		return nil
	}
	founded, err := s.client.FoundLedger(s.ctx, foundingOf("lie-found"), "bank", handOf("bank"))
	isLie(t, "another ledger than was founded", founded, err)
}

func TestListsThatMakeNoSenseAreRefused(t *testing.T) {
	s := setScene(t, "lie-lists")
	for what, lie := range map[string]func(*v1.ListLedgersResponse){
		"one name twice": func(a *v1.ListLedgersResponse) { a.Name = "lie" },
		"no id":          func(a *v1.ListLedgersResponse) { a.Id = nil },
	} {
		s.onLedgers = lie
		var last error
		for _, err := range s.client.Ledgers(s.ctx, "") {
			last = err
		}
		isLie(t, what, 0, last)
	}
	for what, lie := range map[string]func(*v1.ListMembersResponse){
		"one id twice":        func(a *v1.ListMembersResponse) { become(a, &v1.ListMembersResponse{Id: make([]byte, 16)}) },
		"no id":               func(a *v1.ListMembersResponse) { a.Id = nil },
		"a record of another": func(a *v1.ListMembersResponse) { a.Id[15] ^= 1 },
		"a damaged record":    func(a *v1.ListMembersResponse) { a.Record = a.Record[1:] },
	} {
		s.onMembers = lie
		var last error
		for _, err := range s.client.LedgerMembers(s.ctx, s.ledger) {
			last = err
		}
		isLie(t, what, 0, last)
	}
}

func TestARequestWhoseAnswerIsLostIsSentAgainWithTheSameBytes(t *testing.T) {
	s := setScene(t, "lost")
	lose := 0
	var sent [][]byte
	s.onAppend = func(request *v1.AppendRequest, _ *v1.AppendResponse) error {
		sent = append(sent, append(slices.Clone(request.Signed), request.Signature...))
		if lose > 0 {
			lose--
			return broken
		}
		return nil
	}
	patient := connect(t, Options{Endpoints: []string{s.endpoint}, Trust: s.cluster.key(t)})
	bank := must(patient.Author(s.ctx, s.ledger, "bank", 0, handOf("bank")))(t)
	// Within one call.
	lose = 2
	draft := new(Draft).Add([]byte("third"), []byte("lot"))
	got := must(bank.Append(s.ctx, draft))(t)
	if !got.Replayed || got.FirstJSN != 3 || len(sent) != 3 || !bytes.Equal(sent[0], sent[1]) ||
		!bytes.Equal(sent[0], sent[2]) {
		t.Errorf("%+v after %d requests", got, len(sent))
	}
	// From call to call: the same draft is the same request, and gets the same place.
	s.bank = must(s.client.Author(s.ctx, s.ledger, "bank", 0, handOf("bank")))(t)
	lose, sent = 1<<20, nil
	draft = new(Draft).Add([]byte("fourth"), []byte("lot"))
	if err := second(s.bank.Append(s.ctx, draft)); !OutcomeUnknown(err) || s.bank.Pending() == nil {
		t.Fatal(err)
	}
	lose = 0
	got = must(s.bank.Append(s.ctx, draft))(t)
	if !got.Replayed || got.FirstJSN != 4 || s.bank.Pending() != nil || !bytes.Equal(sent[0], sent[len(sent)-1]) {
		t.Errorf("%+v", got)
	}
	again := must(s.client.AppendRequest(s.ctx, must(requestOf(sent[0], draft))(t)))(t)
	if again.FirstJSN != got.FirstJSN || again.Stamp != got.Stamp || again.Ledger != got.Ledger {
		t.Errorf("%+v, and then %+v", got, again)
	}
	// Another draft waits for the one before.
	lose = 1 << 20
	if err := second(s.bank.Append(s.ctx, new(Draft).Add([]byte("fifth"), []byte("lot")))); !OutcomeUnknown(err) {
		t.Fatal(err)
	}
	lose = 0
	must(s.bank.Append(s.ctx, new(Draft).Add([]byte("sixth"), []byte("lot"))))(t)
	lineage := must(s.client.Lineage(s.ctx, s.ledger, []byte("lot"), 0, wholeJournals))(t)
	if payloads(lineage.Journals) != "sixth,fifth,fourth,third,second,first" {
		t.Errorf("%s", payloads(lineage.Journals))
	}
	if settled := must(s.bank.Settle(s.ctx))(t); settled != nil {
		t.Errorf("%+v", settled)
	}
}

// A coordinator that took a request and fell silent is left for another one.
func TestALostAnswerIsGivenByAnotherCoordinator(t *testing.T) {
	s := setScene(t, "elsewhere")
	endpoints := []string{s.endpoint, s.cluster.Endpoint}
	client := connect(t, Options{Endpoints: endpoints, Trust: s.cluster.key(t)})
	bank := must(client.Author(s.ctx, s.ledger, "bank", 0, handOf("bank")))(t)
	s.onAppend = func(*v1.AppendRequest, *v1.AppendResponse) error { return broken }
	calls := s.count("Append")
	got := must(bank.Append(s.ctx, new(Draft).Add([]byte("third"))))(t)
	if !got.Replayed || got.FirstJSN != 3 || s.count("Append") != calls+1 {
		t.Errorf("journal %d, replayed: %t", got.FirstJSN, got.Replayed)
	}
}

// requestOf takes a request apart that a relay has seen.
func requestOf(sent []byte, draft *Draft) (*verify.Request, error) {
	request := &verify.Request{Signed: sent[:len(sent)-64], Items: draft.items}
	copy(request.Signature[:], sent[len(sent)-64:])
	return request, nil
}

// A request is not taken for settled if it was refused before, or if another author went past it.
func TestAnAuthorKnowsWhatBecameOfItsRequest(t *testing.T) {
	s := setScene(t, "passed")
	lost := true
	s.onAppend = func(*v1.AppendRequest, *v1.AppendResponse) error {
		if lost {
			return broken
		}
		return nil
	}
	if err := second(s.bank.Append(s.ctx, new(Draft).Add([]byte("lost")))); !OutcomeUnknown(err) {
		t.Fatal(err)
	}
	lost = false
	other := must(s.client.Author(s.ctx, s.ledger, "bank", 0, handOf("bank")))(t)
	must(other.Append(s.ctx, new(Draft).Add([]byte("of another"))))(t)
	for range 2 {
		err := second(s.bank.Append(s.ctx, new(Draft).Add([]byte("next"))))
		if !errors.Is(err, Lane) || s.bank.Pending() == nil {
			t.Error(err)
		}
	}
	// A request that never left is refused by its condition, and the next one takes its number.
	lone := connect(t, Options{Endpoints: []string{s.endpoint}, Trust: s.cluster.key(t), Patience: time.Millisecond})
	mill := must(lone.Author(s.ctx, s.ledger, "mill", 0, handOf("mill")))(t)
	mill.pending = must(mill.Sign(new(Draft).Add([]byte("never")).IfSize(1)))(t)
	appended := must(mill.Append(s.ctx, new(Draft).Add([]byte("next"))))(t)
	if mill.Number() != 2 || appended.Replayed {
		t.Errorf("%+v", appended)
	}
}

func TestAnAuthorSignsOnlyWhatContinuesTheLog(t *testing.T) {
	s := setScene(t, "look")
	s.onCheckpoint = func(a *v1.GetCheckpointResponse) error { a.Standing[len(a.Standing)/2] ^= 1; return nil }
	isLie(t, "a damaged proof of growth", 0, s.bank.Look(s.ctx))
	author, err := s.client.Author(s.ctx, s.ledger, "bank", 0, handOf("bank"))
	isLie(t, "a damaged proof of growth", author, err)
	s.onCheckpoint = nil
	newest := *s.client.trust.newest
	other := newest
	other.Root[0] ^= 1
	s.client.trust.newest = &other
	var fork *ForkError
	if err := s.bank.Look(s.ctx); !errors.As(err, &fork) {
		t.Error(err)
	}
	s.client.trust.newest = &newest
	if err := s.bank.Look(s.ctx); err != nil {
		t.Error(err)
	}
}
