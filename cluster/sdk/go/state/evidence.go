package state

import (
	"bytes"
	"errors"
	"fmt"

	"coppice.dev/sdk/coppice"
)

// Evidence tells that the ledger, or a coordinator of it, contradicts itself or its signature. Keep
// it: what is signed in it can have been made by nobody but a holder of the ledger's keys. The
// cache has dropped all that it held.
type Evidence struct {
	// Why says in words what contradicts what.
	Why string
	// Known is the newest checkpoint that the cache knew: a proof file, or the signed note of a fork.
	// It is nil if the cache has followed no log.
	Known []byte
	// Shown is what contradicts it: a proof file, a signed checkpoint, or the bytes of a header.
	Shown []byte
	// Err is the error by which the contradiction was found, or nil.
	Err error
}

func (e *Evidence) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("state: %s: %v", e.Why, e.Err)
	}
	return "state: " + e.Why
}

// Unwrap lets errors.Is find coppice.ErrUntrusted.
func (e *Evidence) Unwrap() []error {
	if e.Err == nil {
		return []error{coppice.ErrUntrusted}
	}
	return []error{coppice.ErrUntrusted, e.Err}
}

// evidenceOf gives the evidence in an error, if it has any: a fork of the log, or what this package
// found.
func evidenceOf(err error) *Evidence {
	var found *Evidence
	if errors.As(err, &found) {
		return found
	}
	var fork *coppice.ForkError
	if errors.As(err, &fork) {
		shown := fork.Shown
		if len(fork.Proof) > 0 {
			shown = fork.Proof
		}
		return &Evidence{
			Why:   fork.Why,
			Known: bytes.Clone(fork.Known),
			Shown: bytes.Clone(shown),
			Err:   err,
		}
	}
	return nil
}
