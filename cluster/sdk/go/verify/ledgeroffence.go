package verify

import "fmt"

// OffenceKind says what an audit of a ledger has found.
type OffenceKind string

// The kinds that the log itself shows: whoever has the signed checkpoint, the headers and what they
// commit to can show them to others.
const (
	// OffenceHeader is a header that breaks rules 1 to 6 of section 8. Err is an *AuditError.
	OffenceHeader OffenceKind = "header"
	// OffenceEntries are entries of a version that break rules 7 to 9. Err is an *AuditError.
	OffenceEntries OffenceKind = "entries"
	// OffenceRequest is a request that was applied, though a rule of section 18 refuses it. Err is the
	// Refusal.
	OffenceRequest OffenceKind = "request"
	// OffenceLeaf is a journal that is not the one that follows from what its author signed.
	OffenceLeaf OffenceKind = "leaf"
	// OffenceRecords are records that do not follow from what was signed.
	OffenceRecords OffenceKind = "records"
	// OffenceHead is a head of the ledger that its appends do not leave.
	OffenceHead OffenceKind = "head"
	// OffencePurge is a purge whose order lacks what it needs.
	OffencePurge OffenceKind = "purge"
	// OffenceKept is a journal that had to be kept from a purge, and is gone.
	OffenceKept OffenceKind = "kept"
)

// The kinds that are the word of the coordinator that was asked. Another one may answer better.
const (
	// OffenceAnswer is an answer that is not what the log commits to.
	OffenceAnswer OffenceKind = "answer"
	// OffenceWithheld is a journal or its content that is not given, and that no order covers.
	OffenceWithheld OffenceKind = "withheld"
	// OffenceShown is content that is given, though an order has occulted it.
	OffenceShown OffenceKind = "shown"
)

// LedgerOffence is the first thing that an audit of a ledger finds wrong.
type LedgerOffence struct {
	Kind OffenceKind
	// Stamp is the version where it was found; zero if that is no single one.
	Stamp Stamp
	// JSN is the journal at fault, or the first of its request. It is nil if no single one is.
	JSN *uint64
	// Err is the broken rule in words.
	Err error
}

func (o *LedgerOffence) Error() string {
	journal := ""
	if o.JSN != nil {
		journal = fmt.Sprintf(", journal %d", *o.JSN)
	}
	return fmt.Sprintf("verify: ledger: %s: version %d%s: %v", o.Kind, o.Stamp.Version, journal, o.Err)
}

// Unwrap gives the broken rule.
func (o *LedgerOffence) Unwrap() error { return o.Err }

// InLog tells whether the log itself shows the offence, whoever answers.
func (o *LedgerOffence) InLog() bool {
	switch o.Kind {
	case OffenceAnswer, OffenceWithheld, OffenceShown:
		return false
	}
	return true
}
