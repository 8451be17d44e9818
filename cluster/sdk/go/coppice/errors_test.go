package coppice

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	v1 "coppice.dev/sdk/v1"
	"coppice.dev/sdk/verify"
)

// The list of reasons is the ledger's. So is what a client does about each.
func TestReasonsAreThoseOfTheLedger(t *testing.T) {
	source, err := os.ReadFile("../../../types/src/error.rs")
	if err != nil {
		t.Fatal(err)
	}
	own, err := os.ReadFile("errors.go")
	if err != nil {
		t.Fatal(err)
	}
	reasons := regexp.MustCompile(`(?m)^    \w+ = "([A-Z_]+)", (\w+);$`).FindAllStringSubmatch(string(source), -1)
	if len(reasons) < 25 {
		t.Fatalf("%d reasons", len(reasons))
	}
	for _, reason := range reasons {
		name, kindName := Reason(reason[1]), reason[2]
		if !strings.Contains(string(own), fmt.Sprintf("Reason = %q\n", name)) {
			t.Errorf("%s is missing", name)
		}
		wanted := kindFinal
		switch {
		case kindName == "Unavailable" || kindName == "Fenced":
			wanted = kindUnavailable
		case kindName == "Exhausted" && name != QuotaExceeded:
			// A quota stays exceeded for longer than a call would wait.
			wanted = kindExhausted
		}
		if kinds[name] != wanted {
			t.Errorf("%s is handled as %d, not as %d", name, kinds[name], wanted)
		}
	}
}

func TestAStatusIsJudgedByItsReasonOrElseByItsCode(t *testing.T) {
	with := func(code codes.Code, domain, reason string) error {
		s, err := status.New(code, "words\x1b[31m").WithDetails(&errdetails.ErrorInfo{Domain: domain, Reason: reason})
		if err != nil {
			t.Fatal(err)
		}
		return s.Err()
	}
	for i, c := range []struct {
		err    error
		reason Reason
		kind   kind
	}{
		{with(codes.FailedPrecondition, domain, "PRUNED"), Pruned, kindFinal},
		{with(codes.Internal, domain, "INTERNAL"), Internal, kindFinal},
		{with(codes.Unavailable, domain, "NOT_LEADER"), NotLeader, kindUnavailable},
		{with(codes.NotFound, "elsewhere", "UNAVAILABLE"), "", kindFinal},
		{status.Error(codes.Internal, "stream terminated"), "", kindUnavailable},
		{status.Error(codes.ResourceExhausted, "too large"), "", kindExhausted},
		{status.Error(codes.PermissionDenied, "no"), "", kindFinal},
		{errors.New("no status"), "", kindUnavailable},
	} {
		refused := refusalOf(c.err)
		if refused.reason != c.reason || refused.kind != c.kind || strings.Contains(refused.message, "\x1b") {
			t.Errorf("%d: %+v", i, refused)
		}
	}
	if got := printable(strings.Repeat("ä", messageMax)); len(got) > messageMax+2 {
		t.Errorf("%d bytes are kept", len(got))
	}
}

func TestAClosedClientDoesNotWait(t *testing.T) {
	l := sharedLedger(t)
	ctx, client := limited(t), connect(t, Options{Endpoints: []string{l.Endpoint}, Trust: l.key(t), Patience: time.Hour})
	must(client.Get(ctx, []byte("k"), nil))(t)
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	var failed *Error
	if err := second(client.Commit(ctx, put("k", "1"))); !errors.As(err, &failed) || failed.OutcomeUnknown {
		t.Error(err)
	}
}

// A coordinator that sends without end fills no more than a bound.
func TestWhatAVersionHoldsIsBounded(t *testing.T) {
	w := &watcher{part: Headed{Header: &verify.Header{}, Encoded: []byte("header")}, size: versionBytesMax - partBytes}
	message := &v1.WatchHeadsResponse{Header: []byte("header"), Continued: true, Changes: []*v1.Record{{}}}
	if whole, err := w.take(message); err != nil || whole != nil {
		t.Fatal(err)
	}
	message.Changes[0].Key = []byte("k")
	if _, err := w.take(message); err == nil {
		t.Error("changes without end are taken")
	}
	size := versionBytesMax - 2*partBytes
	journal := &Journaled{VersionJournal: verify.VersionJournal{Lists: map[uint32][][]byte{}}}
	if err := journal.add(&v1.JournalResponse{Shard: 1}, &size); err != nil {
		t.Fatal(err)
	}
	if journal.add(&v1.JournalResponse{Shard: 1}, &size) == nil {
		t.Error("the lists of a shard are taken twice")
	}
	if journal.add(&v1.JournalResponse{Shard: 2, Lists: [][]byte{{}}}, &size) == nil {
		t.Error("lists without end are taken")
	}
	if (*Journaled)(nil).add(&v1.JournalResponse{}, &size) == nil {
		t.Error("lists of no version are taken")
	}
}
