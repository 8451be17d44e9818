package verify

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
)

// Digest is a SHA-256 hash.
type Digest [32]byte

func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// ClusterID names a cluster.
type ClusterID [16]byte

func (c ClusterID) String() string { return hex.EncodeToString(c[:]) }

// Stamp names a version, together with the epoch in which it was committed.
type Stamp struct {
	Epoch   uint64
	Version uint64
}

func (s Stamp) String() string { return fmt.Sprintf("(%d, %d)", s.Epoch, s.Version) }

// Limits of section 16.
const (
	keyBytesMax    = 512
	rangeBytesMax  = 513
	fileBytesMax   = 64 << 20
	headerBytesMax = 65_534
	noShard        = math.MaxUint32
	treesMax       = 16
	levelMax       = 32
)

var (
	errShort    = errors.New("the bytes end early")
	errTrailing = errors.New("bytes follow the end")
)

// reader decodes the integers and lists of section 1. It keeps its first error and gives zeros
// after it. Slices that it returns are parts of its input, so nothing is allocated by a stated
// length.
type reader struct {
	rest []byte
	err  error
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, args...)
		r.rest = nil
	}
}

func (r *reader) take(n uint64) []byte {
	if r.err != nil {
		return nil
	}
	if n > uint64(len(r.rest)) {
		r.err, r.rest = errShort, nil
		return nil
	}
	head := r.rest[:n:n]
	r.rest = r.rest[n:]
	return head
}

func (r *reader) u8() uint8 {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) u16() uint16 {
	if b := r.take(2); b != nil {
		return binary.LittleEndian.Uint16(b)
	}
	return 0
}

func (r *reader) u32() uint32 {
	if b := r.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (r *reader) u64() uint64 {
	if b := r.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// short reads an integer in groups of seven bits. There is one spelling of each.
func (r *reader) short() uint64 {
	var value uint64
	for shift := uint(0); ; shift += 7 {
		b := r.u8()
		if r.err != nil {
			return 0
		}
		if shift == 63 && b > 1 {
			r.fail("a short integer is above 2^64")
			return 0
		}
		value |= uint64(b&0x7f) << shift
		if b&0x80 == 0 {
			if b == 0 && shift > 0 {
				r.fail("a short integer has a needless byte")
				return 0
			}
			return value
		}
		if shift == 63 {
			r.fail("a short integer is above 2^64")
			return 0
		}
	}
}

// shortBelow reads a short integer below a limit.
func (r *reader) shortBelow(limit uint64, what string) uint64 {
	value := r.short()
	if r.err == nil && value >= limit {
		r.fail("%s is not below %d", what, limit)
		return 0
	}
	return value
}

func (r *reader) flag() bool {
	b := r.u8()
	if b > 1 {
		r.fail("a flag is neither 0 nor 1")
	}
	return b == 1
}

func (r *reader) digest() (d Digest) {
	copy(d[:], r.take(32))
	return d
}

// digestAt gives a digest where it lies, or nil after an error.
func (r *reader) digestAt() *Digest {
	if b := r.take(32); b != nil {
		return (*Digest)(b)
	}
	return nil
}

func (r *reader) id() (id [16]byte) {
	copy(id[:], r.take(16))
	return id
}

func (r *reader) stamp() Stamp { return Stamp{Epoch: r.u64(), Version: r.u64()} }

// bounded refuses a length that lies outside of its limits.
func (r *reader) bounded(n uint64, least, most uint64, what string) []byte {
	if r.err == nil && (n < least || n > most) {
		r.fail("%s has %d bytes, and %d to %d are allowed", what, n, least, most)
	}
	return r.take(n)
}

func (r *reader) str16(least, most uint64, what string) []byte {
	return r.bounded(uint64(r.u16()), least, most, what)
}

func (r *reader) str32(most uint64, what string) []byte {
	return r.bounded(uint64(r.u32()), 0, most, what)
}

// str reads a length as a short integer, and that many bytes.
func (r *reader) str(least, most uint64, what string) []byte {
	return r.bounded(r.short(), least, most, what)
}

// count16 and count32 read the length of a list whose elements have at least each bytes.
func (r *reader) count16(each int) int { return r.counted(uint64(r.u16()), each) }

func (r *reader) count32(each int) int { return r.counted(uint64(r.u32()), each) }

func (r *reader) counted(n uint64, each int) int {
	if r.err == nil && n > uint64(len(r.rest)/each) {
		r.err, r.rest = errShort, nil
	}
	if r.err != nil {
		return 0
	}
	return int(n)
}

// hashes reads a list16 of digests, without copying them.
func (r *reader) hashes() hashList { return hashList(r.take(32 * uint64(r.u16()))) }

// end gives the first error, also that of trailing bytes.
func (r *reader) end() error {
	if r.err == nil && len(r.rest) > 0 {
		r.err = errTrailing
	}
	return r.err
}

// hashList is a list of digests, side by side.
type hashList []byte

func (h hashList) len() int { return len(h) / 32 }

func (h hashList) at(i int) (d Digest) {
	copy(d[:], h[32*i:])
	return d
}

// writer encodes what a reader decodes.
type writer []byte

func (w *writer) u8(v uint8)      { *w = append(*w, v) }
func (w *writer) u16(v uint16)    { *w = binary.LittleEndian.AppendUint16(*w, v) }
func (w *writer) u32(v uint32)    { *w = binary.LittleEndian.AppendUint32(*w, v) }
func (w *writer) u64(v uint64)    { *w = binary.LittleEndian.AppendUint64(*w, v) }
func (w *writer) bytes(v []byte)  { *w = append(*w, v...) }
func (w *writer) digest(v Digest) { *w = append(*w, v[:]...) }
func (w *writer) stamp(v Stamp)   { w.u64(v.Epoch); w.u64(v.Version) }

func (w *writer) flag(v bool) {
	if v {
		w.u8(1)
	} else {
		w.u8(0)
	}
}

func (w *writer) str16(v []byte) {
	w.u16(uint16(len(v)))
	w.bytes(v)
}

func (w *writer) str32(v []byte) {
	w.u32(uint32(len(v)))
	w.bytes(v)
}

// optStr16 writes opt(str16(v)), where nil is absent.
func (w *writer) optStr16(v []byte) {
	w.flag(v != nil)
	if v != nil {
		w.str16(v)
	}
}
