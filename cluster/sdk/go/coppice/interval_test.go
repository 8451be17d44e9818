package coppice

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"google.golang.org/grpc/credentials/insecure"

	v1 "coppice.dev/sdk/v1"
	"coppice.dev/sdk/verify"
)

// awaited reads the interval of an entry until it has at least these numbers of anchors below and
// above.
func awaited(t testing.TB, client *Client, sequence uint64, below, above int) *Interval {
	t.Helper()
	ctx := limited(t)
	for {
		interval := must(client.EntryInterval(ctx, sequence, &IntervalRead{Anchors: 16}))(t)
		if len(interval.Below) >= below && len(interval.Above) >= above {
			return interval
		}
		if err := sleep(ctx, pauseMin); err != nil {
			t.Fatalf("entry %d has %d anchors below and %d above", sequence, len(interval.Below), len(interval.Above))
		}
	}
}

func TestAnEntryLiesBetweenAnchors(t *testing.T) {
	authority, directory := startStamping(t), t.TempDir()
	l := startLedger(t, directory, "--tsa", authority.url, "--tsa-root", authority.root, "--anchor-every", "1s")
	ctx, r := limited(t), startRelay(t, l, insecure.NewCredentials())
	client := r.client(t, l)
	must(client.Commit(ctx, put("stamped", "1")))(t)
	anchor := must(verify.DecodeHeader(must(l.client(t).Anchor(ctx))(t)))(t)
	if anchor.Kind != verify.KindAnchor || anchor.Anchor.Stamps == nil {
		t.Errorf("not an anchor: %+v", anchor)
	}
	awaited(t, client, 1, 0, 1)
	encoded := must(client.Commit(ctx, put("stamped", "2")))(t).Header
	header := must(verify.DecodeHeader(encoded))(t)
	awaited(t, client, header.Sequence, 1, 1)
	interval := must(client.EntryInterval(ctx, header.Sequence, nil))(t)
	if len(interval.Below) != 1 || len(interval.Above) != 1 || interval.Entry != verify.EntryHash(encoded) ||
		interval.Header.Stamp() != header.Stamp() {
		t.Errorf("%+v", interval)
	}
	for _, anchor := range []verify.ProvenAnchor{interval.Below[0], interval.Above[0]} {
		tokens := anchor.Header.Anchor.Stamps.Tokens
		if len(tokens) != 1 || tokens[0].Type != verify.TokenRFC3161 || tokens[0].Chain != 0 ||
			!bytes.Contains(tokens[0].Bytes, anchor.Imprint[:]) {
			t.Errorf("not a token over the checkpoint: %+v", tokens)
		}
	}
	judgeByCommand(t, l, authority, interval.Proof)

	// An anchor is an entry as well, and a client that believes gets the file.
	of := must(client.EntryInterval(ctx, interval.Below[0].Header.Sequence, &IntervalRead{Anchors: 16}))(t)
	if of.Header.Kind != verify.KindAnchor || len(of.Above) == 0 {
		t.Errorf("%+v", of)
	}
	believing := connect(t, Options{Endpoints: []string{l.Endpoint}, Unverified: true})
	if told := must(believing.EntryInterval(ctx, 1, nil))(t); told.Header != nil || len(told.Proof) == 0 {
		t.Errorf("%+v", told)
	}
	for reason, ask := range map[Reason]func() (*Interval, error){
		NotFound: func() (*Interval, error) { return client.EntryInterval(ctx, 1<<40, nil) },
		LimitExceeded: func() (*Interval, error) {
			return client.EntryInterval(ctx, 1, &IntervalRead{Anchors: 17})
		},
	} {
		if got, err := ask(); !errors.Is(err, reason) {
			t.Errorf("%+v, %v, not %s", got, err, reason)
		}
	}
	if log := readLog(t, client); log.Checkpoint().Size == 0 {
		t.Error("the log with anchors is not read")
	}
	liesAboutIntervals(t, r, client, header.Sequence)
}

// judgeByCommand has the command judge the tokens, which the client does not.
func judgeByCommand(t *testing.T, l *ledger, authority *stamping, proof []byte) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "interval.proof")
	if err := os.WriteFile(file, proof, 0o600); err != nil {
		t.Fatal(err)
	}
	key := filepath.Join(l.Directory, "ledger.vkey")
	words, err := exec.Command(coppiceBin, "verify", file, "--key", "@"+key, "--tsa-root", authority.root).CombinedOutput()
	if err != nil {
		t.Errorf("the command refuses the proof: %v, %s", err, words)
	}
}

func liesAboutIntervals(t *testing.T, r *relay, client *Client, sequence uint64) {
	t.Helper()
	ctx := limited(t)
	awaited(t, client, 1, 0, 2)
	of := func(sequence uint64, anchors uint32) *v1.GetIntervalResponse {
		return must(r.ledger.GetInterval(ctx, &v1.GetIntervalRequest{
			Entry: &v1.GetIntervalRequest_Sequence{Sequence: sequence}, Anchors: anchors,
		}))(t)
	}
	aKey := must(client.Get(ctx, []byte("stamped"), nil))(t)
	older := of(sequence, 1)
	must(client.Commit(ctx, put("stamped", "3")))(t)
	must(client.Get(ctx, []byte("stamped"), nil))(t)
	for what, lie := range map[string]func(*v1.GetIntervalResponse){
		"no proof":                     func(a *v1.GetIntervalResponse) { a.Proof = nil },
		"a damaged proof":              func(a *v1.GetIntervalResponse) { a.Proof[len(a.Proof)/2] ^= 1 },
		"a proof of a key":             func(a *v1.GetIntervalResponse) { a.Proof = aKey.Proof },
		"the proof of another entry":   func(a *v1.GetIntervalResponse) { become(a, of(sequence-1, 1)) },
		"more anchors than asked for":  func(a *v1.GetIntervalResponse) { become(a, of(1, 16)) },
		"a proof under an older log":   func(a *v1.GetIntervalResponse) { a.Proof = older.Proof },
		"what is no proof, but a note": func(a *v1.GetIntervalResponse) { a.Proof = client.Memory().Checkpoint },
	} {
		r.onInterval = lie
		asked := sequence
		if what == "more anchors than asked for" {
			asked = 1
		}
		got, err := client.EntryInterval(ctx, asked, nil)
		isLie(t, what, got, err)
	}
	// Witnesses may lag behind.
	r.onInterval = func(a *v1.GetIntervalResponse) { a.Proof = older.Proof }
	must(client.EntryInterval(ctx, sequence, &IntervalRead{Cosigned: true}))(t)
}
