package main

import (
	"fmt"
	"sort"
)

// versions compares the ledger's versions with the clock, and with the values that were read at
// them.
func versions(operations []Operation) []string {
	faults := againstTheClock(operations)
	return append(faults, againstTheValues(operations)...)
}

// againstTheClock finds a version that is older than one acknowledged before the request. A write's
// version must be newer, or equal, since batches may share a version. A read's version must not be
// older.
func againstTheClock(operations []Operation) []string {
	type acknowledged struct {
		at      int64
		version uint64
	}
	var writes []acknowledged
	for _, operation := range operations {
		if operation.Outcome == "ok" {
			writes = append(writes, acknowledged{operation.Return, operation.Version})
		}
	}
	sort.Slice(writes, func(left, right int) bool { return writes[left].at < writes[right].at })
	newest := make([]uint64, len(writes)+1)
	for index, write := range writes {
		newest[index+1] = max(newest[index], write.version)
	}
	var faults []string
	for _, operation := range operations {
		if operation.Outcome != "ok" {
			continue
		}
		before := sort.Search(len(writes), func(index int) bool { return writes[index].at >= operation.Call })
		if operation.Version < newest[before] {
			faults = append(faults, fmt.Sprintf("client %d: %s of %s at version %d was asked for after version %d was seen",
				operation.Client, operation.Kind, operation.Group, operation.Version, newest[before]))
		}
	}
	return faults
}

// againstTheValues finds a read at a version that does not show the newest write up to that
// version. Writes of unknown outcome, and several writes of one key in one version, leave several
// answers open. Porcupine judges those; here they are skipped.
func againstTheValues(operations []Operation) []string {
	type written struct {
		version uint64
		value   string
	}
	type key struct {
		group string
		index int
	}
	known, open := map[key][]written{}, map[key]map[string]bool{}
	for _, operation := range operations {
		if operation.Kind != "write" || operation.Outcome == "refused" {
			continue
		}
		for index, value := range operation.Values {
			name := key{operation.Group, index}
			if value != nil && operation.Outcome == "ok" {
				known[name] = append(known[name], written{operation.Version, *value})
			} else if value != nil {
				if open[name] == nil {
					open[name] = map[string]bool{}
				}
				open[name][*value] = true
			}
		}
	}
	for _, writes := range known {
		sort.SliceStable(writes, func(left, right int) bool { return writes[left].version < writes[right].version })
	}
	var faults []string
	for _, operation := range operations {
		if operation.Kind != "read" {
			continue
		}
		for index, value := range operation.Values {
			name := key{operation.Group, index}
			writes := known[name]
			after := sort.Search(len(writes), func(at int) bool { return writes[at].version > operation.Version })
			expected := written{}
			if after > 0 {
				expected = writes[after-1]
			}
			shared := after > 1 && writes[after-2].version == expected.version
			if *value != expected.value && !open[name][*value] && !shared {
				faults = append(faults, fmt.Sprintf("client %d read %q of %s/%d at version %d, where %q was written at %d",
					operation.Client, *value, operation.Group, index, operation.Version, expected.value, expected.version))
			}
		}
	}
	return faults
}
