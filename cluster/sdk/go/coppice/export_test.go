package coppice

import "os"

// LedgerOfExamples starts a ledger for the examples of this package, which all share it.
func LedgerOfExamples() (endpoint, vkey string) {
	l := sharedLedger(exampleTest{})
	text, err := os.ReadFile(l.directory + "/ledger.vkey")
	if err != nil {
		panic(err)
	}
	return l.endpoint, string(text[:len(text)-1])
}
