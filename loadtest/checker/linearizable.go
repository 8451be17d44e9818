package main

import (
	"fmt"
	"math"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

// pair is the state of one group: the values of its two keys, "" for none.
type pair [2]string

// step runs one operation on a state. It returns whether the outcome is possible there, and the
// state after it.
//
// A write of unknown outcome must take effect some time after its call. If it never did, it can be
// placed after everything else, where no read sees it. If its condition does not hold, it changes
// nothing.
func step(state, input, _ any) (bool, any) {
	before, operation := state.(pair), input.(*Operation)
	if operation.Kind == "read" {
		return before[0] == *operation.Values[0] && before[1] == *operation.Values[1], before
	}
	holds := operation.Condition == nil || before[operation.Condition.Key] == operation.Condition.Value
	switch {
	case operation.Outcome == "refused":
		return !holds, before
	case !holds:
		return operation.Outcome == "unknown", before
	}
	after := before
	for key, value := range operation.Values {
		if value != nil {
			after[key] = *value
		}
	}
	return true, after
}

var registers = porcupine.Model{
	Init:  func() any { return pair{} },
	Step:  step,
	Equal: func(left, right any) bool { return left.(pair) == right.(pair) },
}

// linearizable judges each group by Porcupine, all of them within the limit.
func linearizable(operations []Operation, limit time.Duration) []string {
	groups := map[string][]porcupine.Operation{}
	for index := range operations {
		operation := &operations[index]
		entry := porcupine.Operation{
			ClientId: operation.Client, Input: operation, Call: operation.Call, Return: operation.Return,
		}
		if operation.Outcome == "unknown" {
			entry.Return = math.MaxInt64
		}
		groups[operation.Group] = append(groups[operation.Group], entry)
	}
	names := make([]string, 0, len(groups))
	for name := range groups {
		names = append(names, name)
	}
	sort.Strings(names)
	var faults []string
	end := time.Now().Add(limit)
	for _, name := range names {
		// For Porcupine, 0 means no limit.
		left := max(time.Until(end), time.Millisecond)
		switch porcupine.CheckOperationsTimeout(registers, groups[name], left) {
		case porcupine.Ok:
		case porcupine.Illegal:
			faults = append(faults, fmt.Sprintf("no order of the %d operations on %s explains them", len(groups[name]), name))
		default:
			faults = append(faults, fmt.Sprintf("no judgement on %s (%d operations) within the limit", name, len(groups[name])))
		}
	}
	return faults
}
