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
// each value comes to the hash in it.
func writesOf(level Level, headed *coppice.Headed) (map[string][]byte, error) {
	if headed.RolledBack {
		return nil, nil
	}
	told := make(map[string][]byte, len(headed.Changes))
	for _, change := range headed.Changes {
		if change.Deleted {
			told[string(change.Key)] = nil
		} else {
			told[string(change.Key)] = append([]byte{}, change.Value...)
		}
	}
	if level != Proofs {
		return told, nil
	}
	if headed.ListsGone {
		return nil, nil
	}
	if headed.Journal == nil {
		return nil, errors.New("a version without its journal")
	}
	written, err := verify.Written(headed.Header, *headed.Journal)
	if err != nil {
		return nil, err
	}
	writes := make(map[string][]byte, len(written))
	for key, operation := range written {
		if reserved(headed.Header, key) {
			continue
		}
		value, has := told[key]
		delete(told, key)
		switch {
		case operation.Delete && value != nil:
			return nil, fmt.Errorf("the version deletes %q, and the ledger shows a value", key)
		case operation.Delete:
			writes[key] = nil
		case !has || value == nil:
			return nil, fmt.Errorf("the version writes %q, and the ledger shows no value", key)
		case uint64(len(value)) != uint64(operation.Length) || sha256.Sum256(value) != operation.Hash:
			return nil, fmt.Errorf("the version writes another value of %q than the ledger shows", key)
		default:
			writes[key] = value
		}
	}
	for key := range told {
		return nil, fmt.Errorf("the version does not write %q, and the ledger shows a change", key)
	}
	return writes, nil
}

// reserved tells whether a key is of ledgers of members. Changes leave these out.
func reserved(header *verify.Header, key string) bool {
	const formatOfMembers = 2
	return header.Format >= formatOfMembers && (key == "" || key[0] == 0)
}
