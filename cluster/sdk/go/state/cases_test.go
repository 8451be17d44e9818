package state

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"testing"

	"coppice.dev/sdk/coppice"
)

// caseStep is one step of a case. One of the operations is set; those of the ledger are shown to
// the cache at once, unless the stream is cut.
type caseStep struct {
	// Commit writes values; null deletes. ListsGone makes the stream leave out the operation lists.
	Commit    map[string]*string `json:"commit"`
	ListsGone bool               `json:"lists_gone"`
	Rollback  *uint64            `json:"rollback"`
	Prune     *uint64            `json:"prune"`
	// Cut breaks the stream, or heals it.
	Cut *bool `json:"cut"`
	// Forget drops a key from the cache.
	Forget string `json:"forget"`
	// Behind is how many of the next reads meet a coordinator that does not know the version yet.
	Behind int `json:"behind"`
	// Read reads a key at a stamp. With Begin, the answer is held until the step with the same End.
	Read  string    `json:"read"`
	At    [2]uint64 `json:"at"`
	Begin string    `json:"begin"`
	End   string    `json:"end"`
	// Value is expected, by a hit or a miss of the cache; or the ledger's reason to refuse.
	Value   *string `json:"value"`
	By      string  `json:"by"`
	Refused string  `json:"refused"`
}

func TestCases(t *testing.T) {
	encoded, err := os.ReadFile("testdata/cases.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		About string     `json:"about"`
		Steps []caseStep `json:"steps"`
	}
	if err := json.Unmarshal(encoded, &cases); err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		t.Run(c.About, func(t *testing.T) {
			w := newWorld(t, Options{})
			if err := w.follow(); err != nil {
				t.Fatal(err)
			}
			defer w.close()
			held := map[string]*slow{}
			for i := range c.Steps {
				runStep(t, w, i, &c.Steps[i], held)
			}
		})
	}
	if len(cases) == 0 {
		t.Error("no cases")
	}
}

func runStep(t *testing.T, w *world, number int, step *caseStep, held map[string]*slow) {
	t.Helper()
	var err error
	at := coppice.Stamp{Epoch: step.At[0], Version: step.At[1]}
	switch {
	case step.Commit != nil:
		w.write(step.Commit)
		w.listsGone[uint64(len(w.log)-1)] = step.ListsGone
		err = w.let()
	case step.Rollback != nil:
		w.back(*step.Rollback)
		err = w.let()
	case step.Prune != nil:
		w.prune(*step.Prune)
		err = w.let()
	case step.Cut != nil:
		err = w.cutStream(*step.Cut)
	case step.Forget != "":
		w.cache.store.mutex.Lock()
		w.cache.store.change(step.Forget, func([]interval) []interval { return nil })
		w.cache.store.mutex.Unlock()
	case step.Behind > 0:
		w.behind = step.Behind
	case step.Begin != "":
		held[step.Begin] = w.hold(w.cache.At(at), step.Read)
	case step.End != "":
		s := held[step.End]
		s.land()
		expect(t, number, step, s.value, s.err)
	default:
		before := w.cache.Metrics()
		value, err := w.cache.At(at).Get(context.Background(), []byte(step.Read))
		expect(t, number, step, value, err)
		by := "miss"
		if w.cache.Metrics().Hits > before.Hits {
			by = "hit"
		}
		if step.By != "" && by != step.By {
			t.Errorf("step %d is a %s", number+1, by)
		}
	}
	if err != nil {
		t.Fatalf("step %d: %v", number+1, err)
	}
}

func expect(t *testing.T, number int, step *caseStep, value []byte, err error) {
	t.Helper()
	if step.Refused != "" {
		if !errors.Is(err, coppice.Reason(step.Refused)) {
			t.Errorf("step %d is not refused: %q, %v", number+1, value, err)
		}
		return
	}
	if err != nil || (value == nil) != (step.Value == nil) ||
		value != nil && string(value) != *step.Value {
		t.Errorf("step %d: %q, %v", number+1, value, err)
	}
}
