package verify

import (
	"slices"
	"testing"
)

var noHash = Digest{9}

func leafOf(count int, entries ...partEntry) *nodePart {
	return &nodePart{count: count, entries: entries, hashes: missing(count, entries)}
}

// missing has as many hashes as the list proof of these entries needs.
func missing(count int, entries []partEntry) hashList {
	for n := range count + 1 {
		var shown []shownLeaf
		for _, entry := range entries {
			shown = append(shown, shownLeaf{index: uint64(entry.index)})
		}
		hashes := make(hashList, 32*n)
		if _, err := listRoot(uint64(count), shown, hashes); err == nil {
			return hashes
		}
	}
	return nil
}

func recordAt(index uint16, key string) partEntry {
	return partEntry{index: index, key: []byte(key), put: true, hash: &noHash, stamp: Stamp{Version: 1}}
}

func childAt(index uint16, separator string, child *nodePart) partEntry {
	return partEntry{index: index, key: []byte(separator), child: child}
}

func hiddenAt(index uint16, separator string) partEntry {
	return partEntry{index: index, key: []byte(separator), hash: &noHash}
}

func TestNodesHaveTheShapeOfThePage(t *testing.T) {
	tree := func(level uint8, entries uint64, root *nodePart) *treePart {
		return &treePart{level: level, entries: entries, root: root}
	}
	// A tree of two levels above its leaves: the second child of the root begins at m.
	inner := func(second ...partEntry) *treePart {
		first := leafOf(1, childAt(0, "", leafOf(1, recordAt(0, "a"))))
		return tree(2, 3, leafOf(2, childAt(0, "", first), childAt(1, "m", leafOf(2, second...))))
	}
	alone := func(separator string) *treePart {
		second := leafOf(2, hiddenAt(1, separator))
		return tree(2, 9, leafOf(2, childAt(1, "m", second)))
	}
	below := func(key string) *nodePart { return leafOf(1, recordAt(0, key)) }
	half := leafOf(2, childAt(0, "", below("a")), hiddenAt(1, "m"))
	atNext := leafOf(2, childAt(0, "", leafOf(2, hiddenAt(1, "m"))), hiddenAt(1, "m"))
	late, other := recordAt(0, "a"), recordAt(0, "a")
	late.stamp, other.stamp = Stamp{Version: 6}, Stamp{Epoch: 1}
	for name, c := range map[string]struct {
		tree  *treePart
		sound bool
	}{
		"a sound tree":                              {inner(childAt(0, "", below("m")), childAt(1, "p", below("p"))), true},
		"a record below the separator above it":     {inner(childAt(0, "", below("l")), childAt(1, "p", below("p"))), false},
		"a record below its own separator":          {inner(childAt(0, "", below("m")), childAt(1, "p", below("o"))), false},
		"a record at the next separator":            {inner(childAt(0, "", below("p")), childAt(1, "p", below("p"))), false},
		"a separator that is the one above it":      {inner(childAt(0, "", below("m")), childAt(1, "m", below("p"))), false},
		"a separator below the one above it":        {inner(childAt(0, "", below("m")), childAt(1, "b", below("p"))), false},
		"a hidden child at the one above it":        {inner(childAt(0, "", below("m")), hiddenAt(1, "m")), false},
		"a separator above the one above it, alone": {alone("n"), true},
		"the separator above it again, alone":       {alone("m"), false},
		"a separator below the one above it, alone": {alone("l"), false},
		"a first entry with a separator":            {inner(childAt(0, "n", below("n")), childAt(1, "p", below("p"))), false},
		"a second entry without a separator":        {tree(1, 2, leafOf(2, childAt(1, "", below("a")))), false},
		"separators that do not ascend":             {inner(childAt(0, "", below("m")), childAt(1, "", below("p"))), false},
		"a separator at the next one of its node":   {tree(2, 2, atNext), false},
		"an inner node without entries":             {tree(1, 1, &nodePart{}), false},
		"an empty leaf below another node":          {tree(1, 1, leafOf(1, childAt(0, "", &nodePart{}))), false},
		"the empty tree":                            {tree(0, 0, &nodePart{}), true},
		"the empty tree with an entry":              {tree(0, 1, &nodePart{}), false},
		"a leaf of which nothing is shown":          {tree(0, 2, &nodePart{count: 2, hashes: make(hashList, 32)}), false},
		"two records, and one is hidden":            {tree(0, 2, leafOf(2, recordAt(1, "b"))), true},
		"three entries of a leaf of two":            {tree(0, 3, leafOf(2, recordAt(1, "b"))), false},
		"a hidden leaf and a record, two entries":   {tree(1, 2, half), true},
		"a hidden leaf and a record, more":          {tree(1, 9, half), true},
		"a hidden leaf and a record, one entry":     {tree(1, 1, half), false},
		"two hidden leaves, one entry":              {tree(1, 1, leafOf(2, hiddenAt(1, "m"))), false},
		"a record of a later version":               {tree(0, 1, leafOf(1, late)), false},
		"a record of a later epoch":                 {tree(0, 1, leafOf(1, other)), false},
	} {
		if _, err := c.tree.digest(Stamp{Version: 5}); (err == nil) != c.sound {
			t.Errorf("%s: %v", name, err)
		}
	}
	cut := leafOf(3, recordAt(0, "a"))
	cut.hashes = slices.Concat(cut.hashes, make(hashList, 32))
	if _, err := tree(0, 3, cut).digest(Stamp{Version: 5}); err == nil {
		t.Error("a hash too many is accepted")
	}
}

func TestAWalkIsBoundedByWhatIsShown(t *testing.T) {
	// The first leaf ends at b. Only the entry at m shows that nothing lies between b and m.
	tree := func(entries ...partEntry) *treePart {
		return &treePart{level: 1, entries: 3, root: leafOf(3, entries...)}
	}
	first := childAt(0, "", leafOf(2, recordAt(0, "a"), recordAt(1, "b")))
	gap := leafOf(3, recordAt(0, "xa"), recordAt(2, "xc"))
	for name, c := range map[string]struct {
		tree   *treePart
		key    string
		proven bool
	}{
		"between two records":                 {tree(first), "aa", true},
		"behind the last, bounded":            {tree(first, hiddenAt(1, "m")), "c", true},
		"behind the last, without the bound":  {tree(first), "c", false},
		"behind the last, bounded too late":   {tree(first, hiddenAt(2, "x")), "c", false},
		"in a child that is not shown":        {tree(first, hiddenAt(1, "m")), "n", false},
		"behind the last record of the tree":  {tree(childAt(2, "x", leafOf(1, recordAt(0, "x")))), "z", true},
		"before the first record of a leaf":   {tree(childAt(2, "x", leafOf(2, recordAt(0, "xx")))), "x", true},
		"between records with one in between": {tree(childAt(2, "x", gap)), "xb", false},
		"below all that is shown":             {tree(childAt(2, "x", leafOf(1, recordAt(0, "x")))), "a", false},
	} {
		if entry, err := c.tree.find([]byte(c.key)); (err == nil) != c.proven || entry != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestARangeShowsEveryRecord(t *testing.T) {
	leaf := func(entries ...partEntry) *treePart { return &treePart{entries: 4, root: leafOf(4, entries...)} }
	inner := func(entries ...partEntry) *treePart {
		return &treePart{level: 1, entries: 9, root: leafOf(3, entries...)}
	}
	a, b, c, d := recordAt(0, "a"), recordAt(1, "b"), recordAt(2, "c"), recordAt(3, "d")
	child := func(index uint16, key string) partEntry { return childAt(index, key, leafOf(1, recordAt(0, key+"x"))) }
	first := childAt(0, "", leafOf(1, recordAt(0, "a")))
	for name, it := range map[string]struct {
		tree      *treePart
		low, high string
		found     int
	}{
		"all of a leaf":                    {leaf(a, b, c, d), "", "", 4},
		"a record in between is hidden":    {leaf(a, c, d), "a", "d", -1},
		"the first is hidden":              {leaf(b, c, d), "", "d", -1},
		"the last is hidden":               {leaf(a, b, c), "b", "", -1},
		"from a record to a record":        {leaf(b, c), "b", "c", 1},
		"the low bound has no neighbour":   {leaf(b, c), "aa", "c", -1},
		"the low bound has a neighbour":    {leaf(a, b, c), "aa", "c", 1},
		"nothing between neighbours":       {leaf(a, b), "aa", "ab", 0},
		"nothing, and one could be hidden": {leaf(a, c), "aa", "ab", -1},
		"below the first":                  {leaf(a), "", "a", 0},
		"behind the last":                  {leaf(d), "e", "", 0},
		"all of two levels":                {inner(first, child(1, "m"), child(2, "x")), "", "", 3},
		"a child in between is hidden":     {inner(first, child(2, "x")), "", "", -1},
		"a child in between is its hash":   {inner(first, hiddenAt(1, "m"), child(2, "x")), "", "", -1},
		"one child, bounded":               {inner(child(1, "m"), hiddenAt(2, "x")), "m", "x", 1},
		"one child, the bound too late":    {inner(child(1, "m"), hiddenAt(2, "x")), "m", "y", -1},
		"one child, without a bound":       {inner(child(1, "m")), "m", "n", -1},
		"the last child":                   {inner(child(2, "x")), "x", "", 1},
	} {
		var high []byte
		if it.high != "" {
			high = []byte(it.high)
		}
		found, err := it.tree.scan([]byte(it.low), high, nil)
		if (err == nil) != (it.found >= 0) || err == nil && len(found) != it.found {
			t.Errorf("%s: %d records, %v", name, len(found), err)
		}
	}
}
