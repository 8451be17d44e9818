package state

import "coppice.dev/sdk/coppice"

// cutsMax is how many rollbacks are remembered. Beyond that, older views read through.
const cutsMax = 1024

// cut is a rollback: of the versions of older epochs, those up to the base stand.
type cut struct {
	epoch, base uint64
}

// place is a version that a view reads, with the generation of the cache in which the view was
// made.
type place struct {
	stamp      coppice.Stamp
	generation uint64
}

// lineage says which stamps name versions that stand, as far as the log is known: from a start on.
type lineage struct {
	// known is false before the first header.
	known bool
	// frontier is the newest version whose changes are all known, by the name that it has now.
	frontier coppice.Stamp
	// start is where knowledge begins. The epochs of versions up to its version are not known, but for
	// its own.
	start coppice.Stamp
	// cuts are in ascending order, of epochs and of bases.
	cuts []cut
	// boundary is the oldest version that is not pruned.
	boundary uint64
	// generation grows whenever cuts are forgotten. It is then unknown whether places of an older
	// generation stand.
	generation uint64
}

// begin forgets everything, and begins at a version.
func (l *lineage) begin(at coppice.Stamp, boundary uint64) {
	*l = lineage{
		known:      true,
		frontier:   at,
		start:      at,
		boundary:   boundary,
		generation: l.generation + 1,
	}
}

// end forgets everything.
func (l *lineage) end() { *l = lineage{generation: l.generation + 1} }

// above tells whether a stamp is not reached yet.
func (l *lineage) above(at coppice.Stamp) bool {
	return !l.known || at.Epoch > l.frontier.Epoch ||
		at.Epoch == l.frontier.Epoch && at.Version > l.frontier.Version
}

// stands tells whether what the ledger says of a place holds in the present lineage.
func (l *lineage) stands(at place) bool {
	stamp := at.stamp
	if at.generation != l.generation || l.above(stamp) || stamp.Version > l.frontier.Version ||
		stamp.Version < l.boundary {
		return false
	}
	for _, cut := range l.cuts {
		if cut.epoch > stamp.Epoch && stamp.Version > cut.base {
			return false
		}
	}
	return true
}

// names tells whether a stamp is certainly a name of a version. A version is named by the epoch in
// which it was committed, and the base of a rollback by the epoch that the rollback begins as well.
func (l *lineage) names(at coppice.Stamp) bool {
	if at == l.start {
		return true
	}
	owner := l.start.Epoch
	for _, cut := range l.cuts {
		if at == (coppice.Stamp{Epoch: cut.epoch, Version: cut.base}) {
			return true
		}
		if cut.base < at.Version {
			owner = cut.epoch
		}
	}
	return at.Version > l.start.Version && at.Epoch == owner
}

// confirms tells whether a stamp that the ledger has answered to still names a version: one above
// the epoch of then, and 0 for none. A rollback to a version ends the second name that an earlier
// rollback gave it, so that the ledger has to be asked again.
func (l *lineage) confirms(at coppice.Stamp, confirmed uint64) bool {
	for _, cut := range l.cuts {
		if cut.epoch >= confirmed && cut.base == at.Version {
			return false
		}
	}
	return confirmed > 0
}

// rollback makes an older version head, in the epoch of the stamp.
func (l *lineage) rollback(head coppice.Stamp) {
	l.frontier = head
	// A cut whose base is not below the new base is covered by the new cut.
	kept := len(l.cuts)
	for kept > 0 && l.cuts[kept-1].base >= head.Version {
		kept--
	}
	l.cuts = append(l.cuts[:kept], cut{epoch: head.Epoch, base: head.Version})
	if l.start.Version >= head.Version {
		l.start = head
	}
	if len(l.cuts) > cutsMax {
		oldest := l.cuts[0]
		l.start = coppice.Stamp{Epoch: oldest.epoch, Version: oldest.base}
		l.cuts = append(l.cuts[:0], l.cuts[1:]...)
		l.generation++
	}
}
