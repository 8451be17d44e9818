package verify

import (
	"bytes"
	"cmp"
	"maps"
	"slices"
)

// ascending gives the keys of a map in order.
func ascending[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// ordered gives the keys of a map in the order of their bytes.
func ordered[K comparable, V any](m map[K]V, bytesOf func(*K) []byte) []K {
	return slices.SortedFunc(maps.Keys(m), func(a, b K) int { return bytes.Compare(bytesOf(&a), bytesOf(&b)) })
}
