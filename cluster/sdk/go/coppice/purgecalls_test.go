package coppice

import (
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/credentials/insecure"

	v1 "coppice.dev/sdk/v1"
	"coppice.dev/sdk/verify"
)

// keyFile writes the key of a member as `coppice keygen` does.
func keyFile(t testing.TB, name string) string {
	t.Helper()
	key := handOf(name)
	public := strings.SplitN(verify.VKey{Name: name, Key: granted(name, 0).Key}.String(), "+", 3)
	secret := base64.StdEncoding.EncodeToString(append([]byte{1}, key.Seed()...))
	path := filepath.Join(t.TempDir(), name+".key")
	text := strings.Join([]string{"PRIVATE", "KEY", name, public[1], secret}, "+") + "\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// purged is a ledger of the bank, the mill and the court, behind a relay.
type purged struct {
	*relay
	client     *Client
	ledger     LedgerID
	bank, mill *Author
}

func foundPurged(t *testing.T, name string, change func(*verify.Founding)) *purged {
	t.Helper()
	return foundPurgedOn(t, membersLedger(t), name, change)
}

func foundPurgedOn(t *testing.T, l *ledger, name string, change func(*verify.Founding)) *purged {
	t.Helper()
	ctx, r := limited(t), startRelay(t, l, insecure.NewCredentials())
	p := &purged{relay: r, client: r.client(t, l)}
	founding := foundingOf(name)
	founding.Policy.RetainedMax = 8
	court := granted("court", verify.RoleRegulator|verify.RoleReader)
	founding.Members = append(founding.Members, court)
	if change != nil {
		change(founding)
	}
	p.ledger = must(p.client.FoundLedger(ctx, founding, "bank", handOf("bank")))(t).Ledger
	p.bank = must(p.client.Author(ctx, p.ledger, "bank", 0, handOf("bank")))(t)
	p.mill = must(p.client.Author(ctx, p.ledger, "mill", 0, handOf("mill")))(t)
	return p
}

// submit sends an order that these members have approved.
func (p *purged) submit(t *testing.T, file *OrderFile, approving ...string) uint64 {
	t.Helper()
	for _, member := range approving {
		if err := file.Approve(member, handOf(member)); err != nil {
			t.Fatal(err)
		}
	}
	return must(p.bank.Append(limited(t), must(p.bank.OrderDraft(file))(t)))(t).FirstJSN
}

func (p *purged) status(t *testing.T) *PurgeStatus {
	t.Helper()
	return must(p.client.PurgeStatus(limited(t), p.ledger))(t)
}

// sweep sweeps to the end, and gives the numbers that it reached.
func (p *purged) sweep(t *testing.T) (reached []uint64) {
	t.Helper()
	for below, err := range p.bank.Sweep(limited(t)) {
		if err != nil {
			t.Fatal(err)
		}
		reached = append(reached, below)
	}
	return reached
}

func TestALedgerIsPurgedByThoseWhoseJournalsGo(t *testing.T) {
	p := foundPurged(t, "purge-calls", nil)
	ctx, client := limited(t), p.client
	if status := p.status(t); status != nil {
		t.Errorf("%+v", status)
	}
	if err := second(client.PrepareRetain(ctx, p.ledger, 1)); !errors.Is(err, NotFound) {
		t.Error(err)
	}
	must(p.mill.Append(ctx, numbered(1, 3)))(t)
	must(p.mill.Append(ctx, numbered(4, 1024)))(t)
	must(p.bank.Append(ctx, numbered(1028, 1024)))(t)
	anchor := must(client.TrustLedger(ctx, p.ledger))(t)

	draft := must(client.PreparePurge(ctx, p.ledger, 2052, 100))(t)
	names, absent := draft.Signers()
	if !slices.Equal(names, []string{"bank", "mill"}) || absent || draft.Name != "purge-calls" ||
		draft.Order.Until != 2152 || draft.Order.Purge.Authors != 2 ||
		draft.Founding.Policy.RetainedMax != 8 {
		t.Fatalf("%+v", draft)
	}
	alone := must(p.bank.OrderDraft(&draft.OrderFile))(t)
	if err := second(p.bank.Append(ctx, alone)); !errors.Is(err, OrderIncomplete) {
		t.Error(err)
	}
	// The bank's own approval is its request.
	purge := p.submit(t, &draft.OrderFile, "mill", "bank")
	if status := p.status(t); status.Order != purge || status.State != verify.PurgePending ||
		!status.Open() || status.Before != 2052 || status.Purged != 0 || status.Pruned {
		t.Errorf("%+v", status)
	}
	if err := second(client.PrepareRetain(ctx, p.ledger, 2, 2052)); err == nil {
		t.Error("a journal above the purge is retained")
	}
	must(p.bank.Append(ctx, numbered(1, 1)))(t)
	if err := second(client.PrepareRetain(ctx, p.ledger, 2, purge+1)); !errors.Is(err, NotPossible) {
		t.Error(err)
	}
	retain := must(client.PrepareRetain(ctx, p.ledger, 2, 3))(t)
	must(p.mill.Append(ctx, retain))(t)
	if reached := p.sweep(t); !slices.Equal(reached, []uint64{1024, 2048, 2052}) {
		t.Errorf("%v", reached)
	}
	swept := p.status(t)
	if swept.State != verify.PurgeSwept || swept.Purged != 2052 || swept.Pruned || swept.Swept == 0 {
		t.Errorf("%+v", swept)
	}
	kept := must(client.JournalPage(ctx, p.ledger, 0, 9, JournalRead{Payload: true}, nil))(t)
	if len(kept.Journals) != 4 || payloads(kept.Journals[1:]) != "1,2,3" {
		t.Errorf("%+v", kept)
	}
	below := must(client.JournalsBelow(ctx, anchor, 1, 9, true))(t)
	if payloads(below) != "1,2,3" {
		t.Errorf("%+v", below)
	}
	p.checkSwept(t, anchor, purge)
}

// checkSwept checks what is refused once journals are swept, but for those of a first request.
func (p *purged) checkSwept(t *testing.T, anchor *verify.TrustedAnchor, purge uint64) {
	t.Helper()
	ctx, client := limited(t), p.client
	claim := JournalClaim{Ledger: p.ledger, JSN: 9, Payload: []byte("9")}
	for _, err := range []error{
		second(client.VerifyJournal(ctx, claim)), second(client.CoordinatorVerdict(ctx, claim)),
		second(client.VerifyJournalBelow(ctx, anchor, claim)),
	} {
		if !errors.Is(err, PurgedJournal) || errors.Is(err, ErrUntrusted) {
			t.Error(err)
		}
	}
	reader := connect(t, Options{Endpoints: []string{p.endpoint}, Unverified: true})
	early, err := reader.JournalsBelow(ctx, anchor, 1, 9, true)
	isLie(t, "missing journals without a key to trust", early, err)
	p.onJournals = func(a *v1.GetJournalsResponse) { a.Journals = nil }
	early, err = client.JournalsBelow(ctx, anchor, 1, 9, true)
	isLie(t, "no journals where some are kept", early, err)
	p.onJournals = nil
	for what, err := range map[string]error{
		"a sweep of what is swept": func() (err error) {
			for _, err = range p.bank.Sweep(ctx) {
			}
			return err
		}(),
		"a recall of what is swept":  second(client.PrepareRecall(ctx, p.ledger)),
		"a retain of what is swept":  second(client.PrepareRetain(ctx, p.ledger, 2)),
		"a purge of what is swept":   second(client.PreparePurge(ctx, p.ledger, 2052, 0)),
		"a purge above the ledger":   second(client.PreparePurge(ctx, p.ledger, 9999, 0)),
		"an occult of an order":      second(client.PrepareOccult(ctx, p.ledger, 0, purge)),
		"an occult of what is swept": second(client.PrepareOccult(ctx, p.ledger, 0, 9)),
	} {
		refused := errors.Is(err, NotPossible) || errors.Is(err, PurgedJournal)
		if !refused || errors.Is(err, ErrUntrusted) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestAPurgeIsPrunedWithTheVersionsThatHaveItsJournals(t *testing.T) {
	l := startLedger(t, t.TempDir(), sharedMembers.arguments...)
	p := foundPurgedOn(t, l, "purge-pruned", nil)
	must(p.mill.Append(limited(t), numbered(1, 2)))(t)
	draft := must(p.client.PreparePurge(limited(t), p.ledger, 3, 9))(t)
	p.submit(t, &draft.OrderFile, "mill")
	p.sweep(t)
	swept := p.status(t)
	if swept.State != verify.PurgeSwept || swept.Pruned {
		t.Errorf("%+v", swept)
	}
	order := Order{Reason: "the purge", Principal: "bank"}
	must(l.client(t).Prune(limited(t), swept.Swept, order))(t)
	if status := p.status(t); !status.Pruned {
		t.Errorf("%+v", status)
	}
}

func TestAPurgeIsRecalledAndALedgerIsClosed(t *testing.T) {
	p := foundPurged(t, "purge-close", nil)
	ctx := limited(t)
	must(p.mill.Append(ctx, numbered(1, 2)))(t)
	closing := must(p.client.PrepareClosing(ctx, p.ledger))(t)
	if !closing.Order.Purge.Closes || closing.Order.Until != 3 || closing.Order.Purge.Before != 3 {
		t.Fatalf("%+v", closing.Order)
	}
	p.submit(t, &closing.OrderFile, "mill")
	court := must(p.client.Author(ctx, p.ledger, "court", 0, handOf("court")))(t)
	must(court.Append(ctx, must(p.client.PrepareRecall(ctx, p.ledger))(t)))(t)
	info := must(p.client.DescribeLedger(ctx, p.ledger, nil))(t)
	if status := p.status(t); info.Closed || status.State != verify.PurgeRecalled {
		t.Errorf("%+v, %+v", info, status)
	}
	// The order of before is for a smaller ledger.
	late := must(p.bank.OrderDraft(&closing.OrderFile))(t)
	if err := second(p.bank.Append(ctx, late)); !errors.Is(err, NotPossible) {
		t.Error(err)
	}
	again := must(p.client.PrepareClosing(ctx, p.ledger))(t)
	p.submit(t, &again.OrderFile, "mill", "court")
	if reached := p.sweep(t); !slices.Equal(reached, []uint64{5}) {
		t.Errorf("%v", reached)
	}
	if err := second(p.client.FindLedger(ctx, "purge-close", nil)); !errors.Is(err, NotFound) {
		t.Error(err)
	}
	if info := must(p.client.DescribeLedger(ctx, p.ledger, nil))(t); !info.Closed || info.Purged != 5 {
		t.Errorf("%+v", info)
	}
}

func TestNoticeAndAbsentMembersBindAPurge(t *testing.T) {
	p := foundPurged(t, "purge-notice", func(founding *verify.Founding) {
		founding.Policy.NoticeSeconds, founding.Policy.AbsentDays = 3600, 30
	})
	ctx := limited(t)
	must(p.mill.Append(ctx, numbered(1, 2)))(t)
	gone := verify.MemberChange{Kind: verify.ChangeRevoke, Member: verify.MemberIDOf("mill")}
	revocation := must(p.bank.Append(ctx, new(Draft).ChangeMembers(gone)))(t).FirstJSN
	draft := must(p.client.PreparePurge(ctx, p.ledger, 3, 9))(t)
	names, absent := draft.Signers()
	wanted := []verify.Absent{{Member: verify.MemberIDOf("mill"), Revocation: revocation}}
	if !slices.Equal(names, []string{"bank"}) || !absent ||
		!slices.Equal(draft.Order.Purge.Absent, wanted) {
		t.Fatalf("%+v", draft)
	}
	// The mill has no key since a moment, and not since 30 days.
	if err := draft.Approve("court", handOf("court")); err != nil {
		t.Fatal(err)
	}
	alone := must(p.bank.OrderDraft(&draft.OrderFile))(t)
	if err := second(p.bank.Append(ctx, alone)); !errors.Is(err, OrderIncomplete) {
		t.Error(err)
	}
	first := must(p.client.PreparePurge(ctx, p.ledger, 1, 9))(t)
	p.submit(t, &first.OrderFile)
	for below, err := range p.bank.Sweep(ctx) {
		if below != 0 || !errors.Is(err, NotPossible) {
			t.Errorf("swept below %d in the time of notice: %v", below, err)
		}
	}
	if status := p.status(t); status.State != verify.PurgePending {
		t.Errorf("%+v", status)
	}
}

func TestASweepGoesOnWhereItWasInterrupted(t *testing.T) {
	p := foundPurged(t, "purge-interrupted", nil)
	ctx := limited(t)
	must(p.mill.Append(ctx, numbered(1, 1024)))(t)
	must(p.mill.Append(ctx, numbered(1025, 1024)))(t)
	draft := must(p.client.PreparePurge(ctx, p.ledger, 2049, 9))(t)
	p.submit(t, &draft.OrderFile, "mill")
	// The answer of the second step is lost, again and again.
	steps := 0
	p.onAppend = func(request *v1.AppendRequest, _ *v1.AppendResponse) error {
		signed, err := verify.DecodeSigned(request.Signed)
		if err == nil && signed.Number == p.bank.Number() {
			steps++
		}
		if steps > 1 {
			return broken
		}
		return nil
	}
	impatient := connect(t, Options{
		Endpoints: []string{p.endpoint}, Trust: membersLedger(t).key(t), Patience: 1,
	})
	p.bank = must(impatient.Author(ctx, p.ledger, "bank", 0, handOf("bank")))(t)
	var reached []uint64
	var failed error
	for below, err := range p.bank.Sweep(ctx) {
		if failed = err; err == nil {
			reached = append(reached, below)
		}
	}
	if !slices.Equal(reached, []uint64{1024}) || !OutcomeUnknown(failed) || p.bank.Pending() == nil {
		t.Fatalf("%v, then %v", reached, failed)
	}
	p.onAppend = nil
	if reached := p.sweep(t); !slices.Equal(reached, []uint64{2049}) {
		t.Errorf("%v", reached)
	}
	if status := p.status(t); status.State != verify.PurgeSwept || status.Purged != 2049 {
		t.Errorf("%+v", status)
	}
}

func TestRecordsAreBelievedOnlyAtHead(t *testing.T) {
	type answer = v1.GetLedgerRecordsResponse
	s := setScene(t, "lie-records")
	keys := [][]byte{
		s.ledger.HeadKey(), s.ledger.FoundingKey(), s.ledger.PurgeKey(), s.ledger.HeadKey(),
	}
	records := must(s.client.LedgerRecords(s.ctx, s.ledger, keys))(t)
	state, authors, err := verify.DecodeLedgerHead(records[string(keys[0])])
	if len(records) != 2 || err != nil || state.Size != 3 || authors != 1 {
		t.Fatalf("%d records, %+v, %v", len(records), state, err)
	}
	ask := func(stamp *Stamp) *answer {
		asked := slices.SortedFunc(slices.Values(keys[:3]), slices.Compare[[]byte])
		return must(s.relay.ledger.GetLedgerRecords(s.ctx, &v1.GetLedgerRecordsRequest{
			Ledger: identified(s.ledger), Keys: asked, Read: at(stamp),
		}))(t)
	}
	older, member := ask(&s.before), s.member(t, "bank", nil)
	// An empty value is another answer than none.
	for what, lie := range map[string]func(*answer){
		"an older version":    func(a *answer) { become(a, older) },
		"an older value":      func(a *answer) { a.Records = older.Records },
		"a record left out":   func(a *answer) { a.Records = a.Records[1:] },
		"a record twice":      func(a *answer) { a.Records[1] = a.Records[0] },
		"records more":        func(a *answer) { a.Records = append(a.Records, a.Records...) },
		"another order":       func(a *answer) { slices.Reverse(a.Records) },
		"no value":            func(a *answer) { a.Records[0].Value = nil },
		"an empty value":      func(a *answer) { a.Records[1].Value = []byte{} },
		"another value":       func(a *answer) { a.Records[0].Value[3] ^= 1 },
		"a value of nothing":  func(a *answer) { a.Records[2].Value = []byte{1} },
		"no proof":            func(a *answer) { a.Proof = nil },
		"a damaged proof":     func(a *answer) { a.Proof[len(a.Proof)/2] ^= 1 },
		"the proof of others": func(a *answer) { a.Proof = member.Proof },
	} {
		s.onRecords = lie
		got, err := s.client.LedgerRecords(s.ctx, s.ledger, keys)
		isLie(t, what, got, err)
		if what == "no proof" || what == "a damaged proof" {
			draft, err := s.client.PreparePurge(s.ctx, s.ledger, 1, 0)
			isLie(t, what, draft, err)
			status, err := s.client.PurgeStatus(s.ctx, s.ledger)
			isLie(t, what, status, err)
		}
	}
}

func TestNoDraftOfAPurgeLeavesOutASigner(t *testing.T) {
	p := foundPurged(t, "lie-purge", nil)
	ctx := limited(t)
	must(p.mill.Append(ctx, numbered(1, 2)))(t)
	calls := 0
	for step, what := range []string{"head", "authors", "members"} {
		calls = 0
		p.onRecords = func(a *v1.GetLedgerRecordsResponse) {
			if calls == step {
				last := a.Records[len(a.Records)-1]
				last.Value = nil
			}
			calls++
		}
		draft, err := p.client.PreparePurge(ctx, p.ledger, 3, 9)
		if isLie(t, "no record of the "+what, draft, err); calls != step+1 {
			t.Errorf("%s: %d calls", what, calls)
		}
	}
	// A client that believes everything is told of more authors than a purge can have.
	p.onRecords = func(a *v1.GetLedgerRecordsResponse) {
		for _, record := range a.Records {
			if record.Value == nil || len(record.Key) == len(p.ledger.AuthorKey(1)) {
				record.Value = append([]byte{1}, make([]byte, 24)...)
			}
			if string(record.Key) == string(p.ledger.HeadKey()) {
				// The number of authors lies behind format, flag and purged.
				copy(record.Value[10:], []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f})
			}
		}
	}
	reader := connect(t, Options{Endpoints: []string{p.endpoint}, Unverified: true})
	before := p.count("GetLedgerRecords")
	if err := second(reader.PreparePurge(ctx, p.ledger, 3, 9)); !errors.Is(err, NotPossible) {
		t.Error(err)
	}
	if calls := p.count("GetLedgerRecords") - before; calls > 4 {
		t.Errorf("%d calls", calls)
	}
}

func TestAVerdictOfACoordinatorIsOnTheJournalThatWasAskedFor(t *testing.T) {
	s := setScene(t, "lie-verdict")
	claim := JournalClaim{Ledger: s.ledger, JSN: 1, Payload: []byte("first")}
	ask := func(jsn uint64, ledger LedgerID) []byte {
		return must(s.relay.ledger.VerifyJournal(s.ctx, &v1.VerifyJournalRequest{
			Ledger: identified(ledger), Jsn: jsn,
		}))(t).Leaf
	}
	verdict := must(s.client.CoordinatorVerdict(s.ctx, claim))(t)
	proven := must(s.client.VerifyJournal(s.ctx, claim))(t)
	if !verdict.Valid() || !proven.Valid() || verdict.Leaf.Hash() != proven.Leaf.Hash() ||
		len(proven.Checkpoint) == 0 {
		t.Errorf("%+v, %+v", verdict, proven)
	}
	for _, empty := range [][]byte{nil, {}} {
		claim := JournalClaim{Ledger: s.ledger, JSN: 1, Payload: empty}
		for _, verdict := range []*JournalVerdict{
			must(s.client.CoordinatorVerdict(s.ctx, claim))(t),
			must(s.client.VerifyJournal(s.ctx, claim))(t),
		} {
			if verdict.Failed != FailedPayload {
				t.Errorf("%+v", verdict)
			}
		}
	}
	for what, lie := range map[string]func(*v1.VerifyJournalResponse){
		"another journal":  func(a *v1.VerifyJournalResponse) { a.Leaf = ask(2, s.ledger) },
		"another ledger":   func(a *v1.VerifyJournalResponse) { a.Leaf = ask(0, s.other) },
		"no leaf":          func(a *v1.VerifyJournalResponse) { a.Leaf = nil },
		"no checkpoint":    func(a *v1.VerifyJournalResponse) { a.Checkpoint = nil },
		"valid and failed": func(a *v1.VerifyJournalResponse) { a.Failed = FailedPayload },
		"neither":          func(a *v1.VerifyJournalResponse) { a.Valid = false },
	} {
		s.onVerdict = lie
		got, err := s.client.CoordinatorVerdict(s.ctx, claim)
		isLie(t, what, got, err)
	}
	s.onVerdict = func(a *v1.VerifyJournalResponse) { a.Leaf = ask(0, s.other) }
	founding := JournalClaim{Ledger: s.ledger, AnyPayload: true}
	other, err := s.client.CoordinatorVerdict(s.ctx, founding)
	isLie(t, "the founding of another ledger", other, err)
	s.onVerdict = func(a *v1.VerifyJournalResponse) { a.Valid, a.Failed = false, "list\x1b[2J" }
	if said := must(s.client.CoordinatorVerdict(s.ctx, claim))(t); said.Failed != "list\uFFFD[2J" {
		t.Errorf("%+v", said)
	}
	by, withheld := uint64(2), must(s.relay.ledger.GetJournals(s.ctx, &v1.GetJournalsRequest{
		Ledger: identified(s.ledger), FromJsn: 1, Limit: 1, WantRequest: true, Read: at(nil),
	}))(t)
	withheld.Journals[0].OccultedBy = &by
	for what, lie := range map[string]func(*v1.GetJournalsResponse){
		"another journal":  func(a *v1.GetJournalsResponse) { become(a, s.journals(t, 2, 1, 0, true)) },
		"no signature":     func(a *v1.GetJournalsResponse) { become(a, s.journals(t, 1, 1, 0, false)) },
		"no order at all":  func(a *v1.GetJournalsResponse) { become(a, withheld) },
		"a damaged proof":  func(a *v1.GetJournalsResponse) { a.Proof[len(a.Proof)/2] ^= 1 },
		"withheld content": func(a *v1.GetJournalsResponse) { a.Journals[0].OccultedBy = &by },
	} {
		s.onJournals = lie
		got, err := s.client.VerifyJournal(s.ctx, claim)
		isLie(t, what, got, err)
	}
	s.onJournals = nil
	reader := connect(t, Options{Endpoints: []string{s.endpoint}, Unverified: true})
	got, err := reader.VerifyJournal(s.ctx, claim)
	isLie(t, "a verdict by proof without a key to trust", got, err)
}

func TestAVerdictByAnAnchorIsOnAJournalBelowIt(t *testing.T) {
	s := setScene(t, "verdict-anchor")
	anchor := must(s.client.TrustLedger(s.ctx, s.ledger))(t)
	for _, claim := range []JournalClaim{
		{Ledger: s.other, AnyPayload: true}, {Ledger: s.ledger, JSN: anchor.Size(), AnyPayload: true},
	} {
		calls := s.count("GetJournals")
		got, err := s.client.VerifyJournalBelow(s.ctx, anchor, claim)
		if err == nil || s.count("GetJournals") != calls {
			t.Errorf("a journal that does not lie below the anchor: %+v", got)
		}
	}
}
