package coppice

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"coppice.dev/sdk/coppicetest"
	"coppice.dev/sdk/verify"
)

func TestCommitsAndReadsAreProven(t *testing.T) {
	l := sharedLedger(t)
	ctx, client := limited(t), l.client(t)
	first := must(
		client.Commit(ctx, put("round/alice", "100").Put([]byte("round/zoe"), []byte("1")).Metadata([]byte("opening"))),
	)(
		t,
	)
	if len(first.Receipt) == 0 || first.Stamp.Version == 0 {
		t.Fatalf("%+v", first)
	}
	if _, err := verify.Verify(first.Receipt, *l.key(t), nil); err != nil {
		t.Error(err)
	}
	second := must(
		client.Commit(ctx, put("round/alice", "70").IfValueHash([]byte("round/alice"), sha256.Sum256([]byte("100")))),
	)(
		t,
	)
	got := must(client.Get(ctx, []byte("round/alice"), nil))(t)
	if got.Record == nil || string(got.Record.Value) != "70" || got.Record.LastChanged != second.Stamp ||
		len(got.Proof) == 0 {
		t.Errorf("%+v", got)
	}
	old := must(client.Get(ctx, []byte("round/alice"), &Read{At: &first.Stamp}))(t)
	if string(old.Record.Value) != "100" || old.ReadAt != first.Stamp {
		t.Errorf("%+v", old)
	}
	keys := [][]byte{[]byte("round/zoe"), []byte("round/nobody"), []byte("round/alice"), []byte("round/zoe")}
	several := must(client.BatchGet(ctx, keys, nil))(t)
	if string(several.Records[0].Value) != "1" || several.Records[1] != nil || string(several.Records[2].Value) != "70" ||
		several.Records[3] == nil {
		t.Errorf("%+v", several.Records)
	}
	must(client.Commit(ctx, new(Batch).Delete([]byte("round/zoe"))))(t)
	if gone := must(client.Get(ctx, []byte("round/zoe"), nil))(t); gone.Record != nil {
		t.Errorf("%+v", gone)
	}
	empty := must(client.Commit(ctx, put("round/empty", "")))(t)
	if got := must(client.Get(ctx, []byte("round/empty"), &Read{At: &empty.Stamp}))(t); got.Record == nil ||
		len(got.Record.Value) != 0 {
		t.Errorf("%+v", got)
	}
	header := must(client.HeaderOf(ctx, first.Stamp.Version))(t)
	if !bytes.Equal(header, first.Header) {
		t.Error("another header")
	}
	if head := must(client.Head(ctx))(t); head.Stamp.Version < empty.Stamp.Version || head.LogSize == 0 ||
		head.Time.IsZero() {
		t.Errorf("%+v", head)
	}
	if client.trust.known().size == 0 || len(client.Memory().Checkpoint) == 0 {
		t.Error("the client remembers nothing")
	}
}

func TestRefusalsHaveTheirReasons(t *testing.T) {
	l := sharedLedger(t)
	ctx, client := limited(t), l.client(t)
	stamp := must(client.Commit(ctx, put("refused/a", "1")))(t).Stamp
	key, session := []byte("refused/a"), must(client.OpenSession(ctx, NewSessionID()))(t)
	batch := func() *Batch { return put("refused/a", "2") }
	far := Stamp{Epoch: stamp.Epoch, Version: stamp.Version + 1_000_000}
	for name, c := range map[string]struct {
		err    error
		reason Reason
	}{
		"absent":  {second(client.Commit(ctx, batch().IfAbsent(key))), PreconditionFailed},
		"changed": {second(client.Commit(ctx, batch().IfChanged(key, far))), PreconditionFailed},
		"head":    {second(client.Commit(ctx, batch().ExpectHead(far))), PreconditionFailed},
		"empty":   {second(client.Commit(ctx, put("", "2"))), InvalidArgument},
		"future":  {second(client.Get(ctx, key, &Read{At: &far})), NotYet},
		"header":  {second(client.HeaderAt(ctx, 1<<40)), NotFound},
		"session": {second(session.CommitAs(ctx, 0, batch())), InvalidArgument},
	} {
		var failed *Error
		if !errors.Is(c.err, c.reason) || !errors.As(c.err, &failed) || OutcomeUnknown(c.err) {
			t.Errorf("%s: %v", name, c.err)
		}
		if errors.Is(c.err, Pruned) {
			t.Errorf("%s: each reason is found", name)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestABatchOfASessionIsAppliedOnce(t *testing.T) {
	l := sharedLedger(t)
	ctx, client := limited(t), l.client(t)
	session := must(client.OpenSession(ctx, NewSessionID()))(t)
	first := must(session.Commit(ctx, put("session/a", "1")))(t)
	again := must(session.CommitAs(ctx, 1, put("session/a", "1")))(t)
	if !again.Replayed || again.Stamp != first.Stamp || first.Replayed {
		t.Errorf("%+v, then %+v", first, again)
	}
	if err := second(session.CommitAs(ctx, 1, put("session/a", "2"))); !errors.Is(err, SessionMismatch) {
		t.Error(err)
	}
	batch := put("session/a", "2").Metadata([]byte("note")).IfValueHash([]byte("session/a"), sha256.Sum256([]byte("1"))).
		IfChanged([]byte("session/a"), first.Stamp).IfAbsent([]byte("session/never"))
	must(session.Commit(ctx, batch))(t)
	found := must(client.OpenSession(ctx, session.ID()))(t)
	if found.Highest() != 2 || found.BatchHash() != batch.Hash() {
		t.Errorf("number %d, batch %s", found.Highest(), found.BatchHash())
	}
	if err := second(client.commit(ctx, safe, found.request(3, put("session/a", "3")))); err != nil {
		t.Error(err)
	}
}

func TestAStreamCommitsInOrder(t *testing.T) {
	l := sharedLedger(t)
	ctx, client := limited(t), l.client(t)
	session := must(client.OpenSession(ctx, NewSessionID()))(t)
	stream := session.Stream()
	const batches = 3 * UnderWayMax
	var answers []*Answer
	for i := range batches {
		if answer := must(stream.Push(ctx, put("stream/counter", fmt.Sprint(i))))(t); answer != nil {
			answers = append(answers, answer)
		}
		if i == batches/2 {
			// The connection breaks in the middle.
			stream.live.end()
		}
	}
	for {
		answer := must(stream.Next(ctx))(t)
		if answer == nil {
			break
		}
		answers = append(answers, answer)
	}
	if len(answers) != batches || session.Highest() != batches {
		t.Fatalf("%d answers, number %d", len(answers), session.Highest())
	}
	for i, answer := range answers {
		if answer.Number != uint64(i)+1 || len(answer.Receipt) == 0 ||
			i > 0 && answer.Stamp.Version < answers[i-1].Stamp.Version {
			t.Fatalf("answer %d: %+v", i, answer)
		}
	}
	if got := must(client.Get(ctx, []byte("stream/counter"), nil))(t); string(got.Record.Value) != fmt.Sprint(batches-1) {
		t.Errorf("%s", got.Record.Value)
	}
	// A refused batch ends the stream, and nothing behind it is applied.
	must(stream.Push(ctx, put("stream/counter", "wrong").IfAbsent([]byte("stream/counter"))))(t)
	must(stream.Push(ctx, put("stream/counter", "behind")))(t)
	if err := second(stream.Next(ctx)); !errors.Is(err, PreconditionFailed) || !OutcomeUnknown(err) {
		t.Error(err)
	}
	if err := second(stream.Push(ctx, put("stream/counter", "later"))); !errors.Is(err, PreconditionFailed) {
		t.Error(err)
	}
	if got := must(client.Get(ctx, []byte("stream/counter"), nil))(t); string(got.Record.Value) != fmt.Sprint(batches-1) {
		t.Errorf("%s", got.Record.Value)
	}
}

// The ledger dies in the middle of a stream and of a session, and comes back at its place.
func TestAStreamGoesOnAfterTheLedgerWasKilled(t *testing.T) {
	l := startLedger(t, t.TempDir())
	ctx := limited(t)
	client := connect(t, Options{Endpoints: []string{l.Endpoint}, Trust: l.key(t), Patience: coppicetest.StartMax})
	session := must(client.OpenSession(ctx, NewSessionID()))(t)
	stream := session.Stream()
	defer stream.Close()
	const batches = 2 * UnderWayMax
	for i := range batches {
		if i == UnderWayMax/2 {
			l.Kill()
			l.Restart(t)
		}
		must(stream.Push(ctx, put("killed/counter", fmt.Sprint(i)).Put(fmt.Appendf(nil, "killed/%d", i), nil)))(t)
	}
	for answer := must(stream.Next(ctx))(t); answer != nil; answer = must(stream.Next(ctx))(t) {
		if answer.Number == batches {
			break
		}
	}
	if session.Highest() != batches {
		t.Errorf("%d batches are committed", session.Highest())
	}
	// Batches of one version are folded, and none is applied behind a later one.
	last := batches
	for change, err := range client.History(ctx, []byte("killed/counter"), 0, nil) {
		var value int
		if _, scanErr := fmt.Sscan(string(change.Value), &value); err != nil || scanErr != nil || value >= last {
			t.Fatalf("%s before %d: %v", change.Value, last, err)
		}
		last = value
	}
	records := must(countRange(ctx, client, "killed/", "killed0"))(t)
	got := must(client.Get(ctx, []byte("killed/counter"), nil))(t)
	if records != batches+1 || string(got.Record.Value) != fmt.Sprint(batches-1) {
		t.Errorf("%d records, the counter is %s", records, got.Record.Value)
	}
}

func TestAStageIsFinalizedOrDropped(t *testing.T) {
	l := startLedger(t, t.TempDir())
	ctx, client := limited(t), l.client(t)
	stage := must(client.Stage(ctx, put("staged/a", "1"), nil))(t)
	if got := must(client.Get(ctx, []byte("staged/a"), nil))(t); got.Record != nil {
		t.Error("a stage is visible")
	}
	child := must(client.Stage(ctx, put("staged/b", "2"), stage))(t)
	committed := must(client.Finalize(ctx, stage))(t)
	if committed.Stamp != stage.Stamp {
		t.Errorf("%s, not %s", committed.Stamp, stage.Stamp)
	}
	next := must(client.Finalize(ctx, child))(t)
	if next.Stamp != child.Stamp {
		t.Errorf("%s, not %s", next.Stamp, child.Stamp)
	}
	lost := must(client.Stage(ctx, put("staged/a", "3"), nil))(t)
	must(client.Commit(ctx, put("staged/c", "4")))(t)
	if err := second(client.Finalize(ctx, lost)); !errors.Is(err, StageLost) {
		t.Error(err)
	}
	dropped := must(client.Stage(ctx, put("staged/a", "5"), nil))(t)
	must(client.Stage(ctx, put("staged/a", "6"), dropped))(t)
	if n := must(client.Discard(ctx, dropped))(t); n != 2 {
		t.Errorf("%d stages were dropped", n)
	}
	// The coordinator's word about a root is held to the version.
	lying := must(client.Stage(ctx, put("staged/a", "7"), nil))(t)
	lying.StateRoot[0] ^= 1
	if err := second(client.Finalize(ctx, lying)); !errors.Is(err, ErrUntrusted) || !OutcomeUnknown(err) {
		t.Error(err)
	}
}

func TestARangeIsCompleteAcrossPages(t *testing.T) {
	l := sharedLedger(t)
	ctx, client := limited(t), l.client(t)
	const records = 2*pageRecords + 7
	for start := 0; start < records; start += 400 {
		batch := new(Batch)
		for i := start; i < min(start+400, records); i++ {
			batch.Put(fmt.Appendf(nil, "range/%05d", i), fmt.Append(nil, i))
		}
		must(client.Commit(ctx, batch))(t)
	}
	low, high := []byte("range/"), []byte("range0")
	count := 0
	for record, err := range client.Range(ctx, low, high, nil) {
		if err != nil {
			t.Fatal(err)
		}
		if string(record.Key) != fmt.Sprintf("range/%05d", count) || string(record.Value) != fmt.Sprint(count) {
			t.Fatalf("record %d is %s", count, record.Key)
		}
		if count == 10 {
			// Later pages are of the version of the first.
			must(client.Commit(ctx, put("range/99999", "later")))(t)
		}
		count++
	}
	if count != records {
		t.Errorf("%d records", count)
	}
	for record, err := range client.Range(ctx, []byte("range/99999"), nil, nil) {
		if err != nil || string(record.Value) != "later" {
			t.Error(err)
		}
		break
	}
	for range client.Range(ctx, []byte("range/x"), []byte("range/y"), nil) {
		t.Error("a range without records has one")
	}
	for _, err := range client.Range(ctx, []byte("b"), []byte("a"), nil) {
		if !errors.Is(err, InvalidArgument) {
			t.Error(err)
		}
	}
}

func TestHistoryDifferencesAndHeadsAreStreamed(t *testing.T) {
	l := sharedLedger(t)
	ctx, client := limited(t), l.client(t)
	key := []byte("history/a")
	first := must(client.Commit(ctx, put("history/a", "1")))(t)
	must(client.Commit(ctx, put("history/a", "2").Put([]byte("history/b"), []byte("x"))))(t)
	last := must(client.Commit(ctx, new(Batch).Delete(key)))(t)
	var words []string
	for change, err := range client.History(ctx, key, 0, nil) {
		if err != nil {
			t.Fatal(err)
		}
		words = append(words, fmt.Sprintf("%v %s", change.Deleted, change.Value))
	}
	if got := strings.Join(words, ", "); got != "true , false 2, false 1" {
		t.Errorf("history: %s", got)
	}
	words = nil
	for d, err := range client.Diff(ctx, first.Stamp, last.Stamp, []byte("history/"), []byte("history0")) {
		if err != nil {
			t.Fatal(err)
		}
		words = append(words, fmt.Sprintf("%s %v %v", d.Key, d.Before != nil, d.After != nil))
	}
	if got := strings.Join(words, ", "); got != "history/a true false, history/b false true" {
		t.Errorf("diff: %s", got)
	}
	heads := 0
	for head, err := range client.WatchHeads(ctx, Watch{From: 0}) {
		if err != nil {
			t.Fatal(err)
		}
		if head.Header.Sequence != uint64(heads) {
			t.Fatalf("header %d", head.Header.Sequence)
		}
		heads++
	}
	if heads == 0 {
		t.Error("no headers")
	}
}

func TestAWatchFollowsNewCommits(t *testing.T) {
	l := sharedLedger(t)
	ctx, client := limited(t), l.client(t)
	ctx, cancel := context.WithCancel(ctx)
	from := must(client.Head(ctx))(t).LogSize
	watch := Watch{From: from, Follow: true, ChangedKeys: true, ChangedValues: true}
	committed := make(chan Stamp, 1)
	go func() {
		answer, err := client.Commit(ctx, put("watch/a", "1"))
		if err != nil {
			cancel()
			return
		}
		committed <- answer.Stamp
	}()
	for head, err := range client.WatchHeads(ctx, watch) {
		if err != nil {
			t.Fatal(err)
		}
		if len(head.Changes) > 0 && string(head.Changes[0].Key) == "watch/a" {
			if string(head.Changes[0].Value) != "1" || head.Header.Stamp() != <-committed {
				t.Errorf("%+v", head)
			}
			break
		}
	}
	cancel()
	for _, err := range client.WatchHeads(ctx, Watch{Follow: true}) {
		if err == nil || !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}

func TestVersionsArePinnedPrunedAndRolledBack(t *testing.T) {
	l := startLedger(t, t.TempDir())
	ctx, client := limited(t), l.client(t)
	for i := range 6 {
		must(client.Commit(ctx, put("k", fmt.Sprint(i))))(t)
	}
	id := PinID(NewSessionID())
	pin := must(client.Pin(ctx, id, 2, time.Minute))(t)
	if pin.ID != id || pin.Version != 2 || !pin.Expires.After(time.Now()) {
		t.Errorf("%+v", pin)
	}
	order := Order{Principal: "alice", Reason: "end of year"}
	if err := second(client.Prune(ctx, 3, order)); !errors.Is(err, Pinned) {
		t.Error(err)
	}
	if err := second(client.Prune(ctx, 3, Order{})); !errors.Is(err, InvalidArgument) {
		t.Error(err)
	}
	if pins := must(client.Pins(ctx))(t); len(pins) != 1 || pins[0].ID != id {
		t.Errorf("%+v", pins)
	}
	if !must(client.Unpin(ctx, id))(t) || must(client.Unpin(ctx, id))(t) {
		t.Error("a pin is not dropped once")
	}
	if answer := must(client.Prune(ctx, 3, order))(t); answer.PrunedBoundary != 3 {
		t.Errorf("%+v", answer)
	}
	if err := second(client.Get(ctx, []byte("k"), &Read{At: &Stamp{Version: 2}})); !errors.Is(err, Pruned) {
		t.Error(err)
	}
	before := must(client.Get(ctx, []byte("k"), &Read{At: &Stamp{Version: 5}}))(t)
	rolled := must(
		client.Rollback(ctx, 4, Order{Principal: "alice", Reason: "a mistake", ExpectedHead: &Stamp{Version: 6}}),
	)(
		t,
	)
	if rolled.Head != (Stamp{Epoch: 1, Version: 4}) {
		t.Errorf("%+v", rolled)
	}
	for _, read := range []*Read{
		nil, {At: &Stamp{Version: 4}}, {At: &Stamp{Epoch: 1, Version: 4}}, {At: &Stamp{Epoch: 9, Version: 4}, AnyEpoch: true},
	} {
		if got := must(client.Get(ctx, []byte("k"), read))(t); string(got.Record.Value) != "3" ||
			got.ReadAt != (Stamp{Version: 4}) {
			t.Errorf("%+v: %+v", read, got)
		}
	}
	if err := second(client.Get(ctx, []byte("k"), &Read{At: &Stamp{Version: 5}})); !errors.Is(err, RolledBack) {
		t.Error(err)
	}
	// The old proof still holds by itself. A newer checkpoint shows that its version was rolled back.
	size := must(verify.ClaimedSize(before.Proof))(t)
	newer := must(client.Checkpoint(ctx, size))(t)
	var refused *verify.Error
	_, err := verify.Verify(before.Proof, *l.key(t), &verify.Options{Newer: newer.Standing})
	if !errors.As(err, &refused) || refused.Step != verify.StepStanding {
		t.Error(err)
	}
	status := must(client.Status(ctx))(t)
	if len(status.Groups) != 3 || status.PrunedBoundary != 3 {
		t.Errorf("%v", status)
	}
	if err := client.TransferLeader(ctx, "no such group", "node-1"); err == nil {
		t.Error("a group of no name changed its leader")
	}
}

func TestAClientFollowsTheLedgersKey(t *testing.T) {
	directory := t.TempDir()
	l := startLedger(t, directory)
	old := l.key(t)
	ctx := limited(t)
	earlier := l.client(t)
	first := must(earlier.Commit(ctx, put("k", "1")))(t)
	memory := earlier.Memory()
	l.Stop()
	next := filepath.Join(directory, "next.key")
	if words, err := exec.Command(coppiceBin, "keygen", "--out", next, "--name", old.Name).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, words)
	}
	l = startLedger(t, directory)
	text := must(os.ReadFile(filepath.Join(directory, "next.vkey")))(t)
	newKey := must(verify.ParseVKey(strings.TrimSpace(string(text))))(t)
	client := connect(t, Options{Endpoints: []string{l.Endpoint}, Trust: old, Memory: &memory})
	client.trust.interval = 0
	must(client.RotateKey(ctx, newKey, Order{Principal: "alice", Reason: "rehearsal"}))(t)
	must(client.Commit(ctx, put("k", "2")))(t)
	if got := must(client.Get(ctx, []byte("k"), nil))(t); string(got.Record.Value) != "2" {
		t.Errorf("%+v", got)
	}
	if known := client.trust.known(); known.key.Key != newKey.Key || len(known.changes) != 1 {
		t.Error("the client does not follow the key")
	}
	// A program that is given the new key alone follows as well, and so does the memory.
	encoded := must(json.Marshal(client.Memory()))(t)
	memory = Memory{}
	if err := json.Unmarshal(encoded, &memory); err != nil {
		t.Fatal(err)
	}
	for i, options := range []Options{{Trust: &newKey}, {Trust: &newKey, Memory: &memory}, {Trust: old, Memory: &memory}} {
		options.Endpoints = []string{l.Endpoint}
		fresh := connect(t, options)
		if got, err := fresh.Get(ctx, []byte("k"), nil); err != nil || string(got.Record.Value) != "2" {
			t.Errorf("client %d: %v", i, err)
		}
		// A receipt from before the change is judged with a newer checkpoint.
		if _, err := fresh.verifyProof(ctx, fresh.known(), first.Receipt); err != nil {
			t.Errorf("client %d: %v", i, err)
		}
	}
	stranger := newKey
	stranger.Key[0] ^= 1
	if _, err := New(Options{Endpoints: []string{l.Endpoint}, Trust: &stranger, Memory: &memory}); err == nil {
		t.Error("the memory of another ledger is taken")
	}
}

func TestCallersShareAClient(t *testing.T) {
	l := sharedLedger(t)
	ctx, client := limited(t), l.client(t)
	client.trust.interval = 0
	var group errgroup
	for caller := range 8 {
		group.run(func() error {
			key := fmt.Sprintf("shared/%d", caller)
			for i := range 10 {
				if _, err := client.Commit(ctx, put(key, fmt.Sprint(i))); err != nil {
					return err
				}
				got, err := client.Get(ctx, []byte(key), nil)
				if err != nil {
					return err
				}
				if string(got.Record.Value) != fmt.Sprint(i) {
					return fmt.Errorf("%s is %s after %d", key, got.Record.Value, i)
				}
			}
			return nil
		})
	}
	for _, err := range group.wait() {
		t.Error(err)
	}
}

// errgroup collects the errors of goroutines.
type errgroup struct {
	running sync.WaitGroup
	mutex   sync.Mutex
	errors  []error
}

func (g *errgroup) run(task func() error) {
	g.running.Go(func() {
		if err := task(); err != nil {
			g.mutex.Lock()
			defer g.mutex.Unlock()
			g.errors = append(g.errors, err)
		}
	})
}

func (g *errgroup) wait() []error {
	g.running.Wait()
	return g.errors
}
