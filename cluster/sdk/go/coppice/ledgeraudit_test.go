package coppice

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"testing"

	"google.golang.org/grpc/credentials/insecure"

	v1 "coppice.dev/sdk/v1"
	"coppice.dev/sdk/verify"
)

// auditedJSON is what `coppice ledger audit --json` says.
type auditedJSON struct {
	Sound      bool
	Since      *uint64
	To         uint64
	Purged     uint64
	Journals   uint64
	Root       string
	Occulted   uint64
	Payloads   *uint64
	Difference *struct {
		Version uint64
		JSN     *uint64
		What    string
	} `json:"first_difference"`
}

// commandAudit lets the command audit a ledger, which is another implementation.
func commandAudit(t *testing.T, l *ledger, endpoint, name string, payloads bool) (said auditedJSON) {
	t.Helper()
	arguments := []string{"ledger", "audit", name, "--json", "--key", l.key(t).String()}
	if payloads {
		arguments = append(arguments, "--values")
	}
	run := exec.CommandContext(limited(t), coppiceBin, arguments...)
	run.Env = append(os.Environ(), "COPPICE_ENDPOINT="+endpoint)
	var output, errors bytes.Buffer
	run.Stdout, run.Stderr = &output, &errors
	failed := run.Run()
	if err := json.Unmarshal(output.Bytes(), &said); err != nil {
		t.Fatalf("%v: %v\n%s%s", failed, err, &output, &errors)
	}
	return said
}

// auditBoth compares the report of this package with what the command says.
func auditBoth(t *testing.T, l *ledger, client *Client, ledger LedgerID, name string, payloads bool) *LedgerReport {
	t.Helper()
	report := must(client.AuditLedger(limited(t), LedgerAudit{Ledger: ledger, Payloads: payloads}))(t)
	said := commandAudit(t, l, l.Endpoint, name, payloads)
	if !report.Sound() || !said.Sound {
		t.Fatalf("%v, and the command says %+v", report.Offence, said)
	}
	same := (report.Since == nil) == (said.Since == nil) && (report.Since == nil || *report.Since == *said.Since)
	if !same || report.Purged != said.Purged || report.Journals != said.Journals ||
		report.Root.String() != said.Root || report.Occulted != said.Occulted {
		t.Errorf("%+v, and the command says %+v", report, said)
	}
	// Other tests may have written to the cluster between the two audits.
	if report.To > said.To || (said.Payloads != nil) != payloads {
		t.Errorf("%+v, and the command says %+v", report, said)
	}
	if payloads && report.Payloads != *said.Payloads {
		t.Errorf("%d payloads, and the command says %d", report.Payloads, *said.Payloads)
	}
	return report
}

// audited is a ledger with all that an auditor judges, behind a relay.
type audited struct {
	*purged
	cluster *ledger
	name    string
	// occulted is the number of a journal whose content is gone, and order that of the order.
	occulted, order uint64
}

func foundAudited(t *testing.T, name string, change func(*verify.Founding)) *audited {
	t.Helper()
	a := &audited{cluster: membersLedger(t), name: name}
	a.purged = foundPurgedOn(t, a.cluster, name, func(founding *verify.Founding) {
		founding.Policy.Occult = 1
		if change != nil {
			change(founding)
		}
	})
	ctx := limited(t)
	lot, bag := []byte("lot-7"), []byte("bag-1")
	must(a.mill.Append(ctx, new(Draft).Add([]byte("milled"), lot).Add([]byte("packed"), lot, bag)))(t)
	must(a.bank.Append(ctx, new(Draft).Add([]byte("secret"), lot)))(t)
	join := verify.MemberChange{Kind: verify.ChangeJoin, Grant: granted("farm", verify.RoleWriter)}
	must(a.bank.Append(ctx, new(Draft).ChangeMembers(join)))(t)
	agent := verify.MemberChange{
		Kind: verify.ChangeAgent, Grant: granted("scale", verify.RoleWriter), Prefix: []byte("lot-"),
	}
	must(a.mill.Append(ctx, new(Draft).ChangeMembers(agent)))(t)
	scale := must(a.client.Author(ctx, a.ledger, "scale", 2, handOf("scale")))(t)
	must(scale.Append(ctx, new(Draft).Add([]byte("40 kg"), lot).IfCount(lot, 3)))(t)
	farm := must(a.client.Author(ctx, a.ledger, "farm", 1, handOf("farm")))(t)
	must(farm.Append(ctx, numbered(1, 40)))(t)
	a.occulted = 3
	file := must(a.client.PrepareOccult(ctx, a.ledger, 100, a.occulted))(t)
	a.order = a.submit(t, file, "court")
	must(a.mill.Append(ctx, new(Draft).Add([]byte("sold"), lot)))(t)
	return a
}

func (a *audited) audit(t *testing.T, payloads bool) (*LedgerReport, error) {
	t.Helper()
	return a.client.AuditLedger(limited(t), LedgerAudit{Ledger: a.ledger, Payloads: payloads})
}

// sweepAll purges the ledger below a number, and keeps two journals.
func (a *audited) sweepAll(t *testing.T, before uint64, approving ...string) {
	t.Helper()
	ctx := limited(t)
	draft := must(a.client.PreparePurge(ctx, a.ledger, before, 100))(t)
	a.submit(t, &draft.OrderFile, approving...)
	must(a.mill.Append(ctx, must(a.client.PrepareRetain(ctx, a.ledger, 1))(t)))(t)
	a.sweep(t)
}

func TestALedgerIsAuditedAsTheCommandDoes(t *testing.T) {
	for name, change := range map[string]func(*verify.Founding){
		"audit": nil, "audit-spread": func(f *verify.Founding) { f.Spread = true },
	} {
		a := foundAudited(t, name, change)
		for _, payloads := range []bool{false, true} {
			report := auditBoth(t, a.cluster, a.client, a.ledger, name, payloads)
			if report.Since != nil || report.Purged != 0 || report.Journals != 49 || report.Occulted != 1 {
				t.Errorf("%+v", report)
			}
			if payloads && report.Payloads != 48 || !payloads && report.Payloads != 0 {
				t.Errorf("%d payloads", report.Payloads)
			}
			if _, err := verify.OpenCheckpoint(report.Note, *a.cluster.key(t)); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestAPurgedLedgerIsAuditedBehindItsNewestSweep(t *testing.T) {
	for name, change := range map[string]func(*verify.Founding){
		"audit-purge": nil, "audit-purge-spread": func(f *verify.Founding) { f.Spread = true },
	} {
		a := foundAudited(t, name, change)
		a.sweepAll(t, 47, "mill", "farm")
		ctx := limited(t)
		lot := []byte("lot-7")
		must(a.mill.Append(ctx, new(Draft).Add([]byte("paid"), lot)))(t)
		file := must(a.client.PrepareOccult(ctx, a.ledger, 100, 2))(t)
		a.submit(t, file, "court")
		for _, payloads := range []bool{false, true} {
			report := auditBoth(t, a.cluster, a.client, a.ledger, name, payloads)
			// These are the founding, two journals of a request, and those by which the farm joined and the
			// scale became an agent.
			if report.Since == nil || report.Purged != 47 || report.Kept != 5 || report.Journals != 54 || report.Occulted != 1 {
				t.Errorf("%+v", report)
			}
		}
		// A second purge is pending, which has swept nothing.
		draft := must(a.client.PreparePurge(ctx, a.ledger, 50, 100))(t)
		a.submit(t, &draft.OrderFile, "mill", "farm")
		auditBoth(t, a.cluster, a.client, a.ledger, name, true)
		a.sweep(t)
		// The first order and that of the second purge are below it, too: 47 and 49.
		if report := auditBoth(t, a.cluster, a.client, a.ledger, name, true); report.Purged != 50 || report.Kept != 7 {
			t.Errorf("%+v", report)
		}
	}
}

func TestAnAuditIsResumedWhereItsStreamsBreak(t *testing.T) {
	a := foundAudited(t, "audit-breaks", nil)
	count := 0
	breaks := func() error {
		if count++; count%4 == 0 {
			return broken
		}
		return nil
	}
	a.onHeads = func(*v1.WatchHeadsResponse) error { return breaks() }
	a.onJournal = func(*v1.JournalResponse) error { return breaks() }
	calls, journals := a.count("WatchHeads"), a.count("Journal")
	last, steps := uint64(0), 0
	audit := LedgerAudit{Ledger: a.ledger, Progress: func(version, to uint64) {
		if version != last+1 && steps > 0 || version > to {
			t.Errorf("version %d behind %d", version, last)
		}
		last, steps = version, steps+1
	}}
	report := must(a.client.AuditLedger(limited(t), audit))(t)
	if !report.Sound() || last != report.To || steps < 8 {
		t.Errorf("%+v after %d versions", report, steps)
	}
	if a.count("WatchHeads") < calls+2 || a.count("Journal") < journals+2 {
		t.Error("no stream was resumed")
	}
	// A stream that gets nowhere ends the audit.
	hasty := connect(t, Options{Endpoints: []string{a.endpoint}, Trust: a.cluster.key(t), Patience: 1})
	a.onJournal = func(*v1.JournalResponse) error { return broken }
	a.onHeads = nil
	if report, err := hasty.AuditLedger(limited(t), audit); err == nil || errors.Is(err, ErrUntrusted) {
		t.Errorf("%+v, %v", report, err)
	}
}

func TestWhatIsNoLedgerIsNotAudited(t *testing.T) {
	l := membersLedger(t)
	r := startRelay(t, l, insecure.NewCredentials())
	client := r.client(t, l)
	if report, err := client.AuditLedger(limited(t), LedgerAudit{Ledger: LedgerID{1}}); !errors.Is(err, NotFound) {
		t.Errorf("%+v, %v", report, err)
	}
	unverified := connect(t, Options{Endpoints: []string{l.Endpoint}, Unverified: true})
	report, err := unverified.AuditLedger(limited(t), LedgerAudit{Ledger: LedgerID{1}})
	isLie(t, "an audit without a key to trust", report, err)
}
