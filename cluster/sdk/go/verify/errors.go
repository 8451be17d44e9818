package verify

import (
	"errors"
	"fmt"
)

// Step names the part of verification that refused a file. The names are those of
// docs/verification.md, sections 13, 18, 19 and 20.
type Step string

// The steps, in the order in which they are taken.
const (
	StepFormat       Step = "format"
	StepKeys         Step = "keys"
	StepCheckpoint   Step = "checkpoint"
	StepNewestHeader Step = "newest_header"
	StepHeader       Step = "header"
	StepEpoch        Step = "epoch"
	StepState        Step = "state"
	StepTree         Step = "tree"
	StepQuery        Step = "query"
	StepValue        Step = "value"
	StepJournal      Step = "journal"
	StepLeaf         Step = "leaf"
	StepList         Step = "list"
	StepRequest      Step = "request"
	StepEnvelope     Step = "envelope"
	StepLineage      Step = "lineage"
	StepTime         Step = "time"
	StepAnchors      Step = "anchors"
	StepStanding     Step = "standing"
	StepCosignatures Step = "cosignatures"
	StepQuestion     Step = "question"
)

// The steps of evidence files, beside format and keys, in order (section 20).
const (
	StepNotes    Step = "notes"
	StepProof    Step = "proof"
	StepConflict Step = "conflict"
)

// Error says which step refused a file, and by which rule. Find it with errors.As.
type Error struct {
	Step Step
	// Err is the broken rule in words.
	Err error
}

func (e *Error) Error() string { return fmt.Sprintf("verify: %s: %v", e.Step, e.Err) }

// Unwrap gives the broken rule.
func (e *Error) Unwrap() error { return e.Err }

// fail makes the error of a step.
func fail(step Step, format string, args ...any) error {
	return &Error{Step: step, Err: fmt.Errorf(format, args...)}
}

// under attributes an error to a step. An error that has a step already becomes part of the new
// one.
func under(step Step, err error) error {
	if err == nil {
		return nil
	}
	var inner *Error
	if errors.As(err, &inner) {
		if inner.Step == step {
			return inner
		}
		return &Error{Step: step, Err: fmt.Errorf("%s: %w", inner.Step, inner.Err)}
	}
	return &Error{Step: step, Err: err}
}
