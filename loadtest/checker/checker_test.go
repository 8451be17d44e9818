package main

import (
	"math/rand"
	"strconv"
	"strings"
	"testing"
	"time"
)

func text(value string) *string { return &value }

func write(client int, call, answered int64, version uint64, first, second string) Operation {
	return Operation{
		Client: client, Group: "g", Kind: "write", Call: call, Return: answered, Outcome: "ok",
		Values: [2]*string{text(first), text(second)}, Version: version,
	}
}

func read(client int, call, answered int64, version uint64, first, second string) Operation {
	operation := write(client, call, answered, version, first, second)
	operation.Kind = "read"
	return operation
}

func when(operation Operation, key int, value string) Operation {
	operation.Condition = &Condition{Key: key, Value: value}
	return operation
}

func refused(operation Operation) Operation {
	operation.Outcome, operation.Version = "refused", 0
	return operation
}

func unknown(operation Operation) Operation {
	operation.Outcome, operation.Version, operation.Return = "unknown", 0, 0
	return operation
}

// changes is the list of changes that a sound ledger would have for the acknowledged writes.
func changes(operations []Operation) []Change {
	var list []Change
	for _, operation := range operations {
		for key, value := range operation.Values {
			if operation.Kind == "write" && operation.Outcome == "ok" && value != nil {
				list = append(list, Change{operation.Group, key, *value, operation.Version})
			}
		}
	}
	return list
}

// verdicts judges a history, and names the judgements that fail.
func verdicts(t *testing.T, operations []Operation, list []Change) string {
	t.Helper()
	if err := wellFormed(operations); err != nil {
		t.Fatal(err)
	}
	report := judge(operations, list, true, time.Minute)
	var failed []string
	for _, verdict := range report.Verdicts {
		if !verdict.Ok {
			failed = append(failed, verdict.Name)
		}
	}
	if report.Ok != (len(failed) == 0) {
		t.Fatalf("the report says %v, its verdicts %v", report.Ok, failed)
	}
	return strings.Join(failed, " ")
}

func TestSoundHistoriesPass(t *testing.T) {
	for name, history := range map[string][]Operation{
		"one after the other": {write(1, 1, 2, 1, "a", "b"), read(2, 3, 4, 1, "a", "b"), write(1, 5, 6, 2, "c", "")},
		"a read sees either side of a write in progress": {
			write(1, 1, 2, 1, "a", "b"), write(1, 3, 9, 2, "c", "d"), read(2, 4, 5, 1, "a", "b"), read(3, 6, 7, 2, "c", "d"),
		},
		"a condition that holds, and one that does not": {
			when(write(1, 1, 2, 1, "a", "b"), 0, ""), refused(when(write(2, 3, 4, 0, "x", "y"), 1, "")),
			when(write(2, 5, 6, 2, "c", "d"), 1, "b"),
		},
		"an unknown write is seen, or not": {
			unknown(write(1, 1, 0, 0, "a", "b")), read(2, 3, 4, 0, "", ""), read(2, 5, 6, 3, "a", "b"),
			unknown(write(1, 7, 0, 0, "c", "d")), read(2, 8, 9, 4, "a", "b"),
		},
	} {
		if failed := verdicts(t, history, changes(history)); failed != "" {
			t.Errorf("%s: %s", name, failed)
		}
	}
}

func TestBadHistoriesAreRefused(t *testing.T) {
	lost := []Operation{write(1, 1, 2, 1, "a", "b"), write(1, 3, 4, 2, "c", "d"), read(2, 5, 6, 2, "a", "b")}
	stale := []Operation{write(1, 1, 2, 1, "a", "b"), write(1, 3, 4, 2, "c", "d"), read(2, 5, 6, 1, "a", "b")}
	torn := []Operation{write(1, 1, 2, 1, "a", "b"), write(1, 3, 4, 2, "c", "d"), read(2, 5, 6, 2, "c", "b")}
	backwards := []Operation{
		write(1, 1, 2, 1, "a", "b"), write(1, 3, 9, 2, "c", "d"), read(2, 4, 5, 2, "c", "d"), read(2, 6, 7, 1, "a", "b"),
	}
	unasked := []Operation{write(1, 1, 2, 1, "a", "b"), read(2, 3, 4, 1, "a", "z")}
	wrongly := []Operation{write(1, 1, 2, 1, "a", "b"), refused(when(write(2, 3, 4, 0, "x", "y"), 0, "a"))}
	both := []Operation{
		write(1, 1, 2, 1, "a", "b"), when(write(1, 3, 6, 2, "c", "d"), 0, "a"), when(write(2, 4, 5, 3, "e", "f"), 0, "a"),
	}
	applied := []Operation{
		write(1, 1, 2, 1, "a", "b"), refused(when(write(2, 3, 4, 0, "x", "y"), 0, "q")), read(1, 5, 6, 2, "x", "y"),
	}
	// The value comes back after another write had replaced it: the batch was applied a second time.
	again := []Operation{
		write(1, 1, 2, 1, "a", "b"), write(2, 3, 4, 2, "c", "d"), read(1, 5, 6, 2, "c", "d"), read(1, 7, 8, 3, "a", "b"),
	}
	for name, example := range map[string]struct {
		history []Operation
		failed  string
	}{
		"lost write":                            {lost, "linearizable versions"},
		"stale read":                            {stale, "linearizable versions"},
		"torn batch":                            {torn, "linearizable versions"},
		"time runs backwards":                   {backwards, "linearizable versions"},
		"a value from nowhere":                  {unasked, "linearizable versions"},
		"refused though the condition holds":    {wrongly, "linearizable"},
		"two writes on one condition":           {both, "linearizable"},
		"refused, and applied":                  {applied, "linearizable versions"},
		"applied twice, seen by a later reader": {again, "linearizable versions"},
	} {
		if failed := verdicts(t, example.history, changes(example.history)); failed != example.failed {
			t.Errorf("%s: refused by %q, not by %q", name, failed, example.failed)
		}
	}
}

func TestBadListsOfChangesAreRefused(t *testing.T) {
	history := []Operation{
		write(1, 1, 2, 1, "a", "b"), unknown(write(2, 3, 0, 0, "c", "d")),
		refused(when(write(3, 4, 5, 0, "e", "f"), 0, "z")), write(1, 6, 7, 5, "g", "h"),
	}
	sound := changes(history)
	with := func(more ...Change) []Change { return append(append([]Change{}, sound...), more...) }
	for name, list := range map[string][]Change{"as told": sound, "the unknown write came": with(Change{"g", 0, "c", 3}, Change{"g", 1, "d", 3})} {
		if failed := verdicts(t, history, list); failed != "" {
			t.Errorf("%s: %s", name, failed)
		}
	}
	moved := append([]Change{}, sound...)
	moved[0].Version = 2
	for name, list := range map[string][]Change{
		"an acknowledged write is missing":   sound[1:],
		"an acknowledged write is elsewhere": moved,
		"applied twice":                      with(Change{"g", 0, "a", 7}),
		"unknown and applied twice":          with(Change{"g", 0, "c", 3}, Change{"g", 0, "c", 4}),
		"refused and applied":                with(Change{"g", 0, "e", 6}),
		"nobody asked for it":                with(Change{"g", 1, "s", 6}),
	} {
		if failed := verdicts(t, history, list); failed != "once" {
			t.Errorf("%s: refused by %q", name, failed)
		}
	}
}

func TestAWriteThatIsReplacedWithinItsVersionLeavesNoChange(t *testing.T) {
	put, gone := write(1, 1, 9, 4, "a", "b"), write(2, 2, 8, 4, "", "d")
	history := []Operation{put, gone, read(3, 10, 11, 4, "", "d")}
	// The first key did not exist before version 4, and does not after it.
	list := []Change{{"g", 1, "d", 4}}
	if failed := verdicts(t, history, list); failed != "" {
		t.Error(failed)
	}
	if failed := verdicts(t, history[:1], list[:0]); failed != "once" {
		t.Errorf("without the deletion, refused by %q", failed)
	}
	history[1] = write(2, 2, 8, 5, "", "d")
	list[0].Version = 5
	if failed := verdicts(t, history[:2], list); failed != "once" {
		t.Errorf("with the deletion in another version, refused by %q", failed)
	}
}

// A register machine is used by several clients. Its history passes, and fails when one read is
// changed to an older value.
func TestARandomHistoryPassesUntilOneReadIsChanged(t *testing.T) {
	for seed := int64(1); seed <= 20; seed++ {
		rng := rand.New(rand.NewSource(seed))
		history, state, reads := []Operation{}, pair{}, []int{}
		version, before := uint64(0), pair{}
		for number := 0; number < 200; number++ {
			call := int64(number * 10)
			// Operations overlap their neighbours; each takes effect at some point within its time.
			answered := call + 10 + rng.Int63n(30)
			switch name := strconv.Itoa(number); rng.Intn(4) {
			case 0, 1:
				if before != state && before[0] != "" {
					reads = append(reads, len(history))
				}
				history = append(history, read(number%7, call, answered, version, state[0], state[1]))
			case 2:
				version++
				before, state = state, pair{"a" + name, "b" + name}
				history = append(history, write(number%7, call, call+5, version, state[0], state[1]))
			case 3:
				history = append(history, refused(when(write(number%7, call, answered, 0, "a"+name, "b"+name), 0, "none such")))
			}
		}
		if failed := verdicts(t, history, changes(history)); failed != "" {
			t.Fatalf("seed %d: %s", seed, failed)
		}
		at := reads[rng.Intn(len(reads))]
		history[at].Values[0] = text("a value that nobody wrote")
		if failed := verdicts(t, history, changes(history)); failed != "linearizable versions" {
			t.Fatalf("seed %d: a changed read is refused by %q", seed, failed)
		}
	}
}

func TestHistoriesThatCannotBeAreNoEvidence(t *testing.T) {
	twice := []Operation{write(1, 1, 2, 1, "a", "b"), write(1, 3, 4, 2, "a", "c")}
	early := []Operation{write(1, 2, 1, 1, "a", "b")}
	answered := []Operation{{Group: "g", Kind: "write", Call: 1, Return: 2, Outcome: "unknown"}}
	half := []Operation{{Group: "g", Kind: "read", Call: 1, Return: 2, Outcome: "ok"}}
	for name, history := range map[string][]Operation{
		"empty": {}, "a value twice": twice, "answered early": early, "unknown, answered": answered, "half a read": half,
	} {
		if wellFormed(history) == nil {
			t.Errorf("%s: taken", name)
		}
	}
}
