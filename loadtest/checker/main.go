// Command checker judges a history that the chaos test recorded.
//
//	checker [-timeout 120s] [-dump FILE] HISTORY
//
// HISTORY has one operation a line. DUMP has one change of one key a line, as the ledger lists them
// in the end. history.go describes both formats. There are three judgements; the run fails if one
// of them does:
//
//	linearizable  Porcupine finds an order of all operations that a register machine could have
//	              run; versions play no part
//	versions      the ledger's versions agree with the order of the operations, and with the
//	              values that were read at them
//	once          the ledger's own list of changes has every acknowledged write once, at its
//	              version, and only values that clients wrote
//
// It prints one JSON object. The exit code is 0 if all judgements hold, 1 if not, and 2 if it could
// not judge.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"time"
)

// Verdict is the outcome of one judgement.
type Verdict struct {
	Name string `json:"name"`
	Ok   bool   `json:"ok"`
	// Faults describes the first few violations.
	Faults []string `json:"faults,omitempty"`
	// Seconds is the time that the judgement took.
	Seconds float64 `json:"seconds"`
}

// Report is the program's output.
type Report struct {
	Ok         bool           `json:"ok"`
	Operations int            `json:"operations"`
	Groups     int            `json:"groups"`
	Outcomes   map[string]int `json:"outcomes"`
	Changes    int            `json:"changes"`
	Verdicts   []Verdict      `json:"verdicts"`
}

// faultsMax bounds the list of a verdict.
const faultsMax = 10

func timed(name string, judge func() []string) Verdict {
	begin := time.Now()
	faults := judge()
	shown := faults
	if len(shown) > faultsMax {
		shown = append(shown[:faultsMax:faultsMax], fmt.Sprintf("and %d more", len(faults)-faultsMax))
	}
	return Verdict{Name: name, Ok: len(faults) == 0, Faults: shown, Seconds: time.Since(begin).Seconds()}
}

func judge(operations []Operation, changes []Change, dumped bool, limit time.Duration) Report {
	report := Report{Operations: len(operations), Changes: len(changes), Outcomes: map[string]int{}}
	groups := map[string]bool{}
	for _, operation := range operations {
		groups[operation.Group] = true
		report.Outcomes[operation.Kind+" "+operation.Outcome]++
	}
	report.Groups = len(groups)
	report.Verdicts = []Verdict{
		timed("linearizable", func() []string { return linearizable(operations, limit) }),
		timed("versions", func() []string { return versions(operations) }),
	}
	if dumped {
		report.Verdicts = append(report.Verdicts, timed("once", func() []string { return once(operations, changes) }))
	}
	report.Ok = true
	for _, verdict := range report.Verdicts {
		report.Ok = report.Ok && verdict.Ok
	}
	return report
}

func main() {
	limit := flag.Duration("timeout", 2*time.Minute, "how long Porcupine may look for an order")
	dump := flag.String("dump", "", "the changes of all keys, as the ledger lists them")
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	operations, err := readLines[Operation](flag.Arg(0))
	if err != nil {
		fmt.Fprintln(os.Stderr, "checker:", err)
		os.Exit(2)
	}
	var changes []Change
	if *dump != "" {
		if changes, err = readLines[Change](*dump); err != nil {
			fmt.Fprintln(os.Stderr, "checker:", err)
			os.Exit(2)
		}
	}
	if err := wellFormed(operations); err != nil {
		fmt.Fprintln(os.Stderr, "checker:", err)
		os.Exit(2)
	}
	report := judge(operations, changes, *dump != "", *limit)
	text, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		fmt.Fprintln(os.Stderr, "checker:", err)
		os.Exit(2)
	}
	fmt.Println(string(text))
	if !report.Ok {
		os.Exit(1)
	}
}
