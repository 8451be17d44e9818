package state

import (
	"crypto/sha256"
	"errors"
	"fmt"

	"coppice.dev/sdk/coppice"
	"coppice.dev/sdk/verify"
)

// writesOf gives what a commit on the stream wrote: a value, or nil for a key that it deleted. The
// map is nil if that is not known. With proofs, the whole journal shows which keys they are, and
// each value comes to the hash in it. With Options.KeysOnly, each value is nil.
func writesOf(options *Options, headed *coppice.Headed) (map[string][]byte, error) {
	level := options.Level
	if headed.RolledBack || level == Proofs && headed.ListsGone {
		return nil, nil
	}
	var written map[string]verify.Operation
	if level == Proofs {
		if headed.Journal == nil {
			return nil, errors.New("a version without its journal")
		}
		var err error
		if written, err = verify.Written(headed.Header, *headed.Journal); err != nil {
			return nil, err
		}
	}
	changes := headed.Changes
	if level == Proofs && options.KeysOnly {
		// The keys are those of the journal.
		changes = nil
	}
	writes := make(map[string][]byte, max(len(written), len(changes)))
	for i := range changes {
		change := &changes[i]
		if level == Proofs {
			if err := compare(written, change); err != nil {
				return nil, err
			}
		}
		if change.Deleted || options.KeysOnly {
			writes[string(change.Key)] = nil
		} else {
			writes[string(change.Key)] = append([]byte{}, change.Value...)
		}
	}
	for key, operation := range written {
		if reserved(headed.Header, key) {
			continue
		}
		if operation.Delete || options.KeysOnly {
			// The ledger shows no deletion of a key that had no value.
			writes[key] = nil
		} else if writes[key] == nil {
			return nil, fmt.Errorf("the version writes %q, and the ledger shows no value", key)
		}
	}
	return writes, nil
}

// compare checks a change by the operations of the journal.
func compare(written map[string]verify.Operation, change *coppice.Changed) error {
	operation, has := written[string(change.Key)]
	switch {
	case !has:
		return fmt.Errorf("the version does not write %q, and the ledger shows a change", change.Key)
	case operation.Delete != change.Deleted:
		return fmt.Errorf("the version and the ledger disagree whether %q is deleted", change.Key)
	case !change.Deleted && sha256.Sum256(change.Value) != operation.Hash:
		return fmt.Errorf("the version writes another value of %q than the ledger shows", change.Key)
	}
	return nil
}

// reserved tells whether a key is of ledgers of members. Changes leave these out.
func reserved(header *verify.Header, key string) bool {
	const formatOfMembers = 2
	return header.Format >= formatOfMembers && (key == "" || key[0] == 0)
}
