package coppice

import "os"

// LedgerOfExamples starts a ledger for the examples of this package, which all share it.
func LedgerOfExamples() (endpoint, vkey string) { return ofExamples(sharedLedger(exampleTest{})) }

// MembersOfExamples starts a cluster that keeps ledgers of members.
func MembersOfExamples() (endpoint, vkey string) { return ofExamples(membersLedger(exampleTest{})) }

func ofExamples(l *ledger) (endpoint, vkey string) {
	text, err := os.ReadFile(l.Directory + "/ledger.vkey")
	if err != nil {
		panic(err)
	}
	return l.Endpoint, string(text[:len(text)-1])
}
