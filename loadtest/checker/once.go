package main

import "fmt"

// once compares the clients' answers with the ledger's own list of changes. An acknowledged value
// must be listed once, at its version. A value of unknown outcome may be listed at most once. A
// refused value, or one that nobody wrote, must not be listed.
//
// If another write of the same version replaced a value, the ledger lists only the other one. It
// lists nothing if the other one deleted a key that did not exist before.
func once(operations []Operation, changes []Change) []string {
	type place struct {
		group string
		key   int
		value string
	}
	type state struct {
		group   string
		key     int
		version uint64
	}
	asked, deleted := map[place]*Operation{}, map[state]bool{}
	for index := range operations {
		operation := &operations[index]
		if operation.Kind != "write" {
			continue
		}
		for key, value := range operation.Values {
			if value != nil && *value != "" {
				asked[place{operation.Group, key, *value}] = operation
			} else if value != nil && operation.Outcome != "refused" {
				// Version 0 stands for a deletion of unknown outcome, which may have taken effect at any
				// version.
				deleted[state{operation.Group, key, operation.Version}] = true
			}
		}
	}
	var faults []string
	listed, at := map[place]uint64{}, map[state]string{}
	for _, change := range changes {
		at[state{change.Group, change.Key, change.Version}] = change.Value
		if change.Value == "" {
			continue
		}
		name := place{change.Group, change.Key, change.Value}
		operation, known := asked[name]
		switch earlier, twice := listed[name]; {
		case twice:
			faults = append(faults, fmt.Sprintf("%v stands at version %d and again at %d", name, earlier, change.Version))
		case !known:
			faults = append(faults, fmt.Sprintf("%v stands at version %d, and nobody asked for it", name, change.Version))
		case operation.Outcome == "refused":
			faults = append(faults, fmt.Sprintf("%v stands at version %d, and was refused", name, change.Version))
		case operation.Outcome == "ok" && operation.Version != change.Version:
			faults = append(faults, fmt.Sprintf("%v stands at version %d, and was acknowledged at %d", name, change.Version, operation.Version))
		}
		listed[name] = change.Version
	}
	for name, operation := range asked {
		if _, found := listed[name]; found || operation.Outcome != "ok" {
			continue
		}
		here, anywhere := state{name.group, name.key, operation.Version}, state{name.group, name.key, 0}
		if _, replaced := at[here]; !replaced && !deleted[here] && !deleted[anywhere] {
			faults = append(faults, fmt.Sprintf("%v was acknowledged at version %d, and stands nowhere", name, operation.Version))
		}
	}
	return faults
}
