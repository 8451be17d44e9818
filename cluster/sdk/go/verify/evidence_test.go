package verify

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"testing"
)

type evidenceCase struct {
	Name    string
	Vkey    string
	Policy  *string
	File    string
	Valid   bool
	Step    *string `json:"failed step"`
	Verdict map[string]any
}

func evidenceCases(t testing.TB) []evidenceCase {
	t.Helper()
	var all struct{ Cases []evidenceCase }
	vectors(t, "evidence.json", &all)
	if len(all.Cases) < 70 {
		t.Fatalf("%d cases", len(all.Cases))
	}
	return all.Cases
}

func (c *evidenceCase) judge(t testing.TB, file []byte) (*Evidence, error) {
	t.Helper()
	var policy *Policy
	if c.Policy != nil {
		var err error
		if policy, err = ParsePolicy([]byte(*c.Policy)); err != nil {
			t.Fatal(err)
		}
	}
	return VerifyEvidence(file, mustKey(t, c.Vkey), policy)
}

// evidenceReport is the object of the vectors.
func evidenceReport(t *testing.T, found *Evidence) (object map[string]any) {
	t.Helper()
	note := func(note EvidenceNote) any {
		checkpoint := note.Checkpoint
		return map[string]any{
			"size": checkpoint.Size, "root": checkpoint.Root.String(), "signed_by": note.SignedBy.String(),
		}
	}
	cosigners, unknown := []any{}, []any{}
	for _, it := range found.Cosigners {
		cosigners = append(cosigners, map[string]any{
			"witness": it.Witness, "key_name": it.KeyName, "time_a": it.TimeA, "time_b": it.TimeB,
		})
	}
	for _, it := range found.Unknown {
		unknown = append(unknown, map[string]any{"key_name": it.KeyName, "key_id": hex.EncodeToString(it.KeyID[:])})
	}
	report := map[string]any{
		"valid": true, "failed_step": nil, "kind": found.Kind, "origin": found.A.Checkpoint.Origin,
		"a": note(found.A), "b": note(found.B), "one_key": found.OneKey(),
		"cosigners": cosigners, "unknown_cosigners": unknown,
	}
	if found.Kind == EvidenceContradiction {
		report["root_in_b"] = found.Root.String()
	} else {
		report["index"], report["replaced_by"] = found.Index, found.New.String()
	}
	text, err := json.Marshal(report)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &object); err != nil {
		t.Fatal(err)
	}
	return object
}

func TestEvidenceIsJudgedAsTheVectorsSay(t *testing.T) {
	for _, c := range evidenceCases(t) {
		found, err := c.judge(t, []byte(c.File))
		expected := ""
		if c.Step != nil {
			expected = *c.Step
		}
		if got := stepOf(err); got != expected || (err == nil) != c.Valid {
			t.Errorf("%s: refused by %q, not by %q: %v", c.Name, got, expected, err)
		}
		if err == nil && !reflect.DeepEqual(evidenceReport(t, found), c.Verdict) {
			t.Errorf("%s: %v, not %v", c.Name, evidenceReport(t, found), c.Verdict)
		}
	}
}

func TestEveryFlippedBitOfEvidenceIsRefused(t *testing.T) {
	for _, c := range evidenceCases(t) {
		// Unused key changes, and lines that nobody verifies, prove nothing, and change nothing.
		if !c.Valid || c.Verdict["one_key"] != true || len(c.Verdict["unknown_cosigners"].([]any)) > 0 ||
			c.Policy != nil || bytes.Contains([]byte(c.File), []byte("\nkey ")) {
			continue
		}
		for bit := range len(c.File) * 8 {
			flipped := []byte(c.File)
			flipped[bit/8] ^= 1 << (bit % 8)
			if _, err := c.judge(t, flipped); err == nil {
				t.Fatalf("%s: bit %d", c.Name, bit)
			}
		}
	}
}

func TestCutAndSplicedEvidenceNeverPanics(t *testing.T) {
	cases, numbers := evidenceCases(t), rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		one, other := &cases[numbers.IntN(len(cases))], &cases[numbers.IntN(len(cases))]
		from, to := numbers.IntN(len(one.File)+1), numbers.IntN(len(other.File)+1)
		file := append([]byte(one.File[:from]), other.File[to:]...)
		if found, err := one.judge(t, file); err == nil && found.A.Checkpoint == found.B.Checkpoint &&
			found.Kind == EvidenceContradiction {
			t.Fatalf("a checkpoint contradicts itself: %s", file)
		}
	}
}
