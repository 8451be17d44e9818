package coppice

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"slices"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	v1 "coppice.dev/sdk/v1"
	"coppice.dev/sdk/verify"
)

// auditLie is a lie of a coordinator, and what an audit finds: an offence in a journal, or none in
// a single one.
type auditLie struct {
	kind verify.OffenceKind
	jsn  *uint64
	lie  func(*relay)
	// here tells that the command believes it.
	here bool
}

func number(n uint64) *uint64 { return &n }

// onPage changes answers that have a journal.
func onPage(jsn uint64, change func(*v1.GetJournalsRequest, *v1.LedgerJournal)) func(*relay) {
	return func(r *relay) {
		r.onAsked = func(request *v1.GetJournalsRequest, answer *v1.GetJournalsResponse) error {
			for _, journal := range answer.Journals {
				if journal.Jsn == jsn {
					change(request, journal)
				}
			}
			return nil
		}
	}
}

// refuses refuses calls for journals from a number on that ask for content, or any.
func refuses(jsn uint64, content bool, err error) func(*relay) {
	return func(r *relay) {
		r.onAsked = func(request *v1.GetJournalsRequest, _ *v1.GetJournalsResponse) error {
			if request.FromJsn == jsn && request.WantPayload == content {
				return err
			}
			return nil
		}
	}
}

func (r *relay) honest() {
	r.onAsked, r.onJournal, r.onHeads, r.onRecords, r.onJournals = nil, nil, nil, nil, nil
}

// checkLies lets both implementations audit a ledger behind a relay that lies.
func (a *audited) checkLies(t *testing.T, lies map[string]auditLie) {
	t.Helper()
	judged := 0
	for what, lie := range lies {
		a.honest()
		lie.lie(a.relay)
		report, err := a.audit(t, true)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		offence := report.Offence
		if offence == nil || offence.Kind != lie.kind || offence.InLog() ||
			(offence.JSN == nil) != (lie.jsn == nil) || lie.jsn != nil && *offence.JSN != *lie.jsn {
			t.Errorf("%s: %v", what, offence)
			continue
		}
		// The command calls some lies an error, and the rest by the same journal.
		said, ok := a.commandSays(t)
		if !ok {
			continue
		}
		judged++
		if lie.here {
			if !said.Sound {
				t.Errorf("%s: the command finds it, too: %+v", what, said.Difference)
			}
			continue
		}
		if said.Sound || said.Difference == nil ||
			said.Difference.JSN != nil && lie.jsn != nil && *said.Difference.JSN != *lie.jsn {
			t.Errorf("%s: the command says %+v, and it is %v", what, said.Difference, offence)
		}
	}
	a.honest()
	if report := must(a.audit(t, true))(t); !report.Sound() {
		t.Error(report.Offence)
	}
	if judged == 0 {
		t.Error("the command has judged no lie")
	}
}

// commandSays is the verdict of the command behind the relay, if it has one.
func (a *audited) commandSays(t *testing.T) (said auditedJSON, ok bool) {
	t.Helper()
	run := exec.CommandContext(limited(t), coppiceBin,
		"ledger", "audit", a.name, "--json", "--values", "--key", a.cluster.key(t).String())
	run.Env = append(os.Environ(), "COPPICE_ENDPOINT="+a.endpoint)
	output, _ := run.Output()
	err := json.Unmarshal(output, &said)
	return said, err == nil
}

func TestAnAuditFindsTheLiesOfACoordinator(t *testing.T) {
	a := foundAudited(t, "audit-lies", nil)
	order, occulted := a.order, a.occulted
	by := func(order *uint64) func(*v1.GetJournalsRequest, *v1.LedgerJournal) {
		return func(request *v1.GetJournalsRequest, j *v1.LedgerJournal) {
			if request.WantPayload {
				j.Envelope, j.OccultedBy = nil, order
			}
		}
	}
	alter := func(request *v1.GetJournalsRequest, j *v1.LedgerJournal) {
		if request.WantPayload && len(j.Envelope) > 0 {
			j.Envelope[40] ^= 1
		}
	}
	leaf := func(change func(*v1.LedgerJournal)) func(*v1.GetJournalsRequest, *v1.LedgerJournal) {
		return func(request *v1.GetJournalsRequest, j *v1.LedgerJournal) {
			if !request.WantRequest {
				change(j)
			}
		}
	}
	shown := func(_ *v1.GetJournalsRequest, j *v1.LedgerJournal) {
		j.Envelope, j.OccultedBy = []byte("secret"), nil
	}
	swap := func(request *v1.GetJournalsRequest, j *v1.LedgerJournal) {
		if request.WantPayload {
			j.Leaf[42] ^= 1
		}
	}
	// of tells an append to the ledger from other entries.
	of := func(entry []byte) bool {
		return entry[0] == byte(verify.EntryAppend) && bytes.Equal(entry[1:17], a.ledger[:])
	}
	first := func(r *relay) {
		r.onAsked = func(request *v1.GetJournalsRequest, answer *v1.GetJournalsResponse) error {
			if request.FromJsn == 0 && request.WantRequest {
				answer.Proof[len(answer.Proof)/2] ^= 1
			}
			return nil
		}
	}
	missing := status.Error(codes.NotFound, "no such journal")
	a.checkLies(t, map[string]auditLie{
		"an append left out of its version": {verify.OffenceAnswer, nil, func(r *relay) {
			r.onJournal = func(m *v1.JournalResponse) error {
				if slices.ContainsFunc(m.Entries, of) {
					m.Entries = slices.DeleteFunc(m.Entries, of)
				}
				return nil
			}
		}, false},
		"a journal left out": {verify.OffenceAnswer, number(0), func(r *relay) {
			r.onAsked = func(request *v1.GetJournalsRequest, answer *v1.GetJournalsResponse) error {
				if !request.WantRequest && len(answer.Journals) > 4 {
					answer.Journals = answer.Journals[1:]
				}
				return nil
			}
		}, false},
		"a journal of no member": {verify.OffenceAnswer, number(6), onPage(6, leaf(func(j *v1.LedgerJournal) {
			// The member stands behind format, kind, ledger, number and version.
			copy(j.Leaf[42:], []byte("somebody else"))
		})), false},
		"a leaf that is none": {verify.OffenceAnswer, number(3), onPage(3, leaf(func(j *v1.LedgerJournal) {
			j.Leaf = nil
		})), false},
		"a founding that is not proven":    {verify.OffenceAnswer, number(0), first, true},
		"an altered payload":               {verify.OffenceAnswer, number(2), onPage(2, alter), false},
		"an altered change of members":     {verify.OffenceAnswer, number(4), onPage(4, alter), false},
		"an altered order":                 {verify.OffenceAnswer, number(order), onPage(order, alter), false},
		"an order without its content":     {verify.OffenceWithheld, number(order), onPage(order, by(nil)), false},
		"an order that is said to be gone": {verify.OffenceWithheld, number(order), onPage(order, by(&order)), false},
		"an order that is refused":         {verify.OffenceWithheld, number(order), refuses(order, true, missing), false},
		"a change of members as purged":    {verify.OffenceWithheld, number(5), refuses(5, true, refusedAsPurged(t)), false},
		"content left out":                 {verify.OffenceWithheld, number(2), onPage(2, by(nil)), false},
		"content as occulted":              {verify.OffenceWithheld, number(2), onPage(2, by(&order)), false},
		"content as occulted by a journal": {verify.OffenceWithheld, number(2), onPage(2, by(&occulted)), false},
		"content as occulted later":        {verify.OffenceWithheld, number(2), onPage(2, by(number(1<<40))), false},
		"content that was occulted":        {verify.OffenceShown, number(occulted), onPage(occulted, shown), false},
		"another leaf with the content":    {verify.OffenceAnswer, number(8), onPage(8, swap), false},
	})
}

func TestAnAuditOfAPurgedLedgerFindsWhatIsWithheld(t *testing.T) {
	a := foundAudited(t, "audit-purge-lies", nil)
	a.sweepAll(t, 48, "mill", "farm")
	purge := a.status(t).Order
	alter := func(_ *v1.GetJournalsRequest, j *v1.LedgerJournal) {
		if len(j.Envelope) > 0 {
			j.Envelope[40] ^= 1
		}
	}
	none := func(_ *v1.GetJournalsRequest, j *v1.LedgerJournal) { j.Envelope = nil }
	unmarked := must(a.relay.ledger.GetLedgerRecords(limited(t), &v1.GetLedgerRecordsRequest{
		Ledger: identified(a.ledger), Keys: [][]byte{a.ledger.MarkKey(48)}, Read: at(nil),
	}))(t).Proof
	withheld := func(jsn uint64) auditLie {
		return auditLie{verify.OffenceWithheld, number(jsn), withholds(t, jsn), false}
	}
	a.checkLies(t, map[string]auditLie{
		"the founding":               withheld(0),
		"a journal that is retained": withheld(1),
		"a change of members":        withheld(4),
		"an agent":                   withheld(5),
		"an order below the purge":   withheld(a.order),
		"a journal above the purge":  withheld(48),
		"the order to purge":         withheld(purge),
		"the order to retain":        withheld(purge + 1),
		"the order of the sweep":     withheld(purge + 2),
		"a list that continues nothing": {verify.OffenceAnswer, number(48), func(r *relay) {
			r.onAsked = func(request *v1.GetJournalsRequest, answer *v1.GetJournalsResponse) error {
				if request.KnownSize == 0 || request.FromJsn != 48 {
					return nil
				}
				request.KnownSize = 0
				other, err := r.ledger.GetJournals(limited(t), request)
				if err == nil {
					become(answer, other)
				}
				return err
			}
		}, false},
		// The command takes these from their proofs.
		"an altered order":                    {verify.OffenceAnswer, number(purge), onPage(purge, alter), true},
		"content above the purge":             {verify.OffenceWithheld, number(48), onPage(48, none), true},
		"content as occulted, without a mark": {verify.OffenceWithheld, number(48), withoutContent(t, a, nil), false},
		"content as occulted":                 {verify.OffenceWithheld, number(48), withoutContent(t, a, unmarked), false},
	})
}

// withoutContent gives one journal at a time, and says that an order has occulted journal 48.
func withoutContent(t *testing.T, a *audited, marks []byte) func(*relay) {
	t.Helper()
	ctx := limited(t)
	info := &errdetails.ErrorInfo{Domain: domain, Reason: string(LimitExceeded)}
	large := must(status.New(codes.InvalidArgument, "too large").WithDetails(info))(t).Err()
	return func(r *relay) {
		r.onAsked = func(request *v1.GetJournalsRequest, answer *v1.GetJournalsResponse) error {
			if !request.WantPayload || request.FromJsn != 48 {
				return nil
			}
			if request.Limit > 1 {
				return large
			}
			request.WantPayload = false
			bare, err := r.ledger.GetJournals(ctx, request)
			if err != nil {
				return err
			}
			become(answer, bare)
			answer.Journals[0].OccultedBy, answer.MarksProof = &a.order, marks
			return nil
		}
	}
}

// Without the log and the records that it proves there is no verdict.
func TestAnAuditWithoutItsLogIsNoVerdict(t *testing.T) {
	a := foundAudited(t, "audit-log", nil)
	for what, lie := range map[string]func(){
		"an altered header":    func() { a.onHeads = func(m *v1.WatchHeadsResponse) error { m.Header[40] ^= 1; return nil } },
		"what is no header":    func() { a.onHeads = func(m *v1.WatchHeadsResponse) error { m.Header = nil; return nil } },
		"another version":      func() { a.onJournal = func(m *v1.JournalResponse) error { flip(m.Header); return nil } },
		"lists without an end": func() { a.onJournal = func(m *v1.JournalResponse) error { m.Header = nil; return nil } },
		"records without a proof": func() {
			a.onRecords = func(m *v1.GetLedgerRecordsResponse) { m.Proof = nil }
		},
		"records of an older version": func() {
			a.onRecords = func(m *v1.GetLedgerRecordsResponse) {
				older := stampOf(m.ReadAt)
				older.Version--
				request := &v1.GetLedgerRecordsRequest{Ledger: identified(a.ledger), Read: at(&older)}
				for _, record := range m.Records {
					request.Keys = append(request.Keys, record.Key)
				}
				become(m, must(a.relay.ledger.GetLedgerRecords(limited(t), request))(t))
			}
		},
		"a head that is hidden": func() {
			a.onRecords = func(m *v1.GetLedgerRecordsResponse) { m.Records[0].Value = nil }
		},
	} {
		a.honest()
		lie()
		report, err := a.audit(t, true)
		isLie(t, what, report, err)
	}
	a.honest()
	a.onCheckpoint = func(m *v1.GetCheckpointResponse) error { m.Standing[len(m.Standing)/2] ^= 1; return nil }
	report, err := a.audit(t, true)
	isLie(t, "a damaged checkpoint", report, err)
}

func flip(header []byte) {
	if len(header) > 40 {
		header[40] ^= 1
	}
}

func TestWhatAnAuditFindsHasItsKind(t *testing.T) {
	r := &ledgerReplay{log: &auditedLog{}}
	fork := &ForkError{Why: "two logs"}
	for _, c := range []struct {
		err  error
		kind verify.OffenceKind
	}{
		{distrusted("GetJournals", &withheld{jsn: 7, why: "withheld"}), verify.OffenceWithheld},
		{distrusted("GetJournals", &badOrder{"not signed"}), verify.OffencePurge},
		{distrusted("GetJournals", errOtherList), verify.OffenceHead},
		{distrust("GetJournals", "no proof"), verify.OffenceAnswer},
		{&verify.LedgerOffence{Kind: verify.OffenceKept}, verify.OffenceKept},
		{fork, ""},
		{&Error{Reason: Unavailable}, ""},
		{nil, ""},
	} {
		var offence *verify.LedgerOffence
		err := r.found(3, c.err)
		if errors.As(err, &offence) != (c.kind != "") || offence != nil && offence.Kind != c.kind {
			t.Errorf("%v becomes %v", c.err, err)
		}
		if c.kind == "" && err != c.err {
			t.Errorf("%v becomes %v", c.err, err)
		}
		if c.kind == verify.OffenceWithheld && *offence.JSN != 7 {
			t.Errorf("journal %d", *offence.JSN)
		}
	}
}

// A header that the ledger's key has signed, and that breaks a rule, is the ledger's offence.
func TestABrokenHeaderOfASignedLogIsAnOffence(t *testing.T) {
	a := foundAudited(t, "audit-header", nil)
	log := must(a.client.readLog(limited(t)))(t)
	var headers [][]byte
	a.onHeads = func(m *v1.WatchHeadsResponse) error { headers = append(headers, bytes.Clone(m.Header)); return nil }
	must(a.client.readLog(limited(t)))(t)
	if log.offence() != nil || uint64(len(headers)) < log.checkpoint.Size {
		t.Fatalf("%v, %d headers", log.offence(), len(headers))
	}
	broken := &auditedLog{}
	for i, header := range headers {
		if i == 3 {
			header[len(header)-1] ^= 1
			header = append(header, 0)
		}
		broken.take(header)
	}
	var offence *verify.LedgerOffence
	if err := broken.offence(); !errors.As(err, &offence) || offence.Kind != verify.OffenceHeader || !offence.InLog() ||
		broken.broken.Sequence != 3 {
		t.Errorf("%v", err)
	}
	if broken.roots.Size() != uint64(len(headers)) {
		t.Error("headers behind the broken one do not count")
	}
	// The proof of the checkpoint names the key and the origin.
	for what, change := range map[string]func(*auditedLog, *verify.Verified){
		"another key":    func(_ *auditedLog, v *verify.Verified) { v.SignedBy.Key[0] ^= 1 },
		"another origin": func(l *auditedLog, _ *verify.Verified) { l.checkpoint.Origin = "elsewhere" },
	} {
		other := *log
		v := &verify.Verified{SignedBy: *a.cluster.key(t)}
		if err := other.checkKeys(v); err != nil || other.offence() != nil {
			t.Fatalf("%v, %v", err, other.offence())
		}
		change(&other, v)
		if err := other.checkKeys(v); err != nil || other.offence() == nil {
			t.Errorf("%s: the log is believed", what)
		}
	}
	v := &verify.Verified{SignedBy: *a.cluster.key(t), KeyChanges: []verify.KeyChange{{Old: log.Genesis().Key}}}
	isLie(t, "a key change that the log does not have", 0, log.checkKeys(v))
}
