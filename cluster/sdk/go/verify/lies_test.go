package verify

import "testing"

// A ledger signed these files itself. Each breaks the rule in its name. They were found by
// comparing verifiers on random states, pairs and key changes.
func TestLiesThatALedgerSignedAreRefused(t *testing.T) {
	var all struct {
		Cases []struct {
			Name  string
			Vkey  string
			File  hexBytes
			Newer hexBytes
			Step  string `json:"failed step"`
		}
	}
	vectors(t, "lies.json", &all)
	if len(all.Cases) == 0 {
		t.Fatal("there are no cases")
	}
	for _, c := range all.Cases {
		_, err := Verify(c.File, mustKey(t, c.Vkey), &Options{Newer: c.Newer})
		if stepOf(err) != c.Step {
			t.Errorf("%s: refused by %q, not by %q: %v", c.Name, stepOf(err), c.Step, err)
		}
	}
}
