package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
)

// An Operation is one line of a history: the request of a client, its time, and the answer. All
// operations of a group touch the same two keys, one in each shard, so that groups can be judged
// one by one. No value is written twice.
type Operation struct {
	Client int `json:"client"`
	// Group names the pair of keys.
	Group string `json:"group"`
	// Kind is "read" or "write".
	Kind string `json:"kind"`
	// Call and Return are nanoseconds of one monotonic clock. Return is 0 if the outcome never became
	// known.
	Call   int64 `json:"call"`
	Return int64 `json:"return"`
	// Outcome is "ok", "refused" (a precondition did not hold), or "unknown" (a write that may have
	// been applied, or still be).
	Outcome string `json:"outcome"`
	// Values are those of a requested write, or of an answered read, by key. "" is not a value;
	// null leaves the key unchanged.
	Values [2]*string `json:"values"`
	// Condition of a write: the key at this index has this value ("" for none).
	Condition *Condition `json:"condition,omitempty"`
	// Version that was written, or read.
	Version uint64 `json:"version,omitempty"`
	// Retried says that the answer was to a retry within a session.
	Retried bool `json:"retried,omitempty"`
}

// A Condition is a precondition of a write.
type Condition struct {
	Key   int    `json:"key"`
	Value string `json:"value"`
}

// A Change is one line of the ledger's own list of a key's changes.
type Change struct {
	Group   string `json:"group"`
	Key     int    `json:"key"`
	Value   string `json:"value"`
	Version uint64 `json:"version"`
}

// lineBytesMax bounds one line of a file.
const lineBytesMax = 1 << 20

func readLines[T any](path string) ([]T, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	scanner := bufio.NewScanner(file)
	scanner.Buffer(make([]byte, 0, 64<<10), lineBytesMax)
	var lines []T
	for scanner.Scan() {
		var line T
		if err := json.Unmarshal(scanner.Bytes(), &line); err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", path, len(lines)+1, err)
		}
		lines = append(lines, line)
	}
	return lines, scanner.Err()
}

// wellFormed refuses a history that could not have been recorded: such a history says nothing about
// the ledger.
func wellFormed(operations []Operation) error {
	if len(operations) == 0 {
		return fmt.Errorf("an empty history proves nothing")
	}
	written := map[string]bool{}
	for number, operation := range operations {
		fail := func(what string) error { return fmt.Errorf("operation %d: %s", number+1, what) }
		known := operation.Outcome == "ok" || operation.Outcome == "refused"
		switch {
		case operation.Kind != "read" && operation.Kind != "write":
			return fail("neither read nor write")
		case !known && operation.Outcome != "unknown":
			return fail("no such outcome: " + operation.Outcome)
		case known && operation.Return < operation.Call:
			return fail("answered before it was asked")
		case !known && operation.Return != 0:
			return fail("unknown, but answered")
		case operation.Kind == "read" && (operation.Outcome != "ok" || operation.Condition != nil):
			return fail("a read is recorded when it is answered, and has no condition")
		case operation.Outcome == "refused" && operation.Condition == nil:
			return fail("refused without a condition")
		case operation.Condition != nil && (operation.Condition.Key < 0 || operation.Condition.Key > 1):
			return fail("no such key")
		}
		if operation.Kind == "read" && (operation.Values[0] == nil || operation.Values[1] == nil) {
			return fail("a read of half a group")
		}
		for key, value := range operation.Values {
			if operation.Kind == "read" || value == nil || *value == "" {
				continue
			}
			name := fmt.Sprintf("%s %d %s", operation.Group, key, *value)
			if written[name] {
				return fail("writes a value for the second time: " + name)
			}
			written[name] = true
		}
	}
	return nil
}
