package fabric

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
)

// height is the place of a transaction in a channel. Its fields are those of Fabric's
// version.Height, so that one converts to the other.
type height = struct{ BlockNum, TxNum uint64 }

// Limits of names and keys. With these, each key fits the 512 bytes of a ledger's key.
const (
	prefixBytesMax    = 32
	channelBytesMax   = 64
	namespaceBytesMax = 132
	keyBytesMax       = 256
	ledgerKeyMax      = 512
	// generationBytesMax is the length of the largest number in decimal.
	generationBytesMax = 20
)

// A key has four bytes besides these parts.
const keyPartsMax = prefixBytesMax + generationBytesMax + channelBytesMax + namespaceBytesMax +
	keyBytesMax

var _ [ledgerKeyMax - keyPartsMax - 4]struct{}

// Kinds of records, behind the channel.
const (
	kindData   = 'd'
	kindParked = 'p'
	kindState  = 's'
)

// keys makes the keys of a channel's records. It begins all of them.
type keys string

// keysOf gives the keys of a channel in a generation of the state.
func keysOf(prefix string, generation uint64, channel string) keys {
	return keys(generationOf(prefix, generation) + channel + "\x00")
}

// generationOf begins all keys of a generation.
func generationOf(prefix string, generation uint64) string {
	return prefix + strconv.FormatUint(generation, 10) + "/"
}

func (k keys) state() []byte { return append([]byte(k), kindState) }

// area is the range of all records of a kind.
func (k keys) area(kind byte) (low, high []byte) {
	return append([]byte(k), kind), append([]byte(k), kind+1)
}

// namespace is the range of a namespace's records.
func (k keys) namespace(namespace string) (low, high []byte) {
	low = append(append(append([]byte(k), kindData), namespace...), 0)
	high = bytes.Clone(low)
	high[len(high)-1] = 1
	return low, high
}

func (k keys) data(namespace, key string) []byte {
	low, _ := k.namespace(namespace)
	return append(low, key...)
}

// parked is the key under which a change waits for a large block to be complete.
func (k keys) parked(data []byte) []byte {
	key := bytes.Clone(data)
	key[len(k)] = kindParked
	return key
}

// unparked is the reverse of parked.
func (k keys) unparked(parked []byte) []byte {
	key := bytes.Clone(parked)
	key[len(k)] = kindData
	return key
}

// split gives namespace and key of a record.
func (k keys) split(data []byte) (namespace, key string, err error) {
	namespace, key, found := strings.Cut(string(data[min(len(k)+1, len(data)):]), "\x00")
	if !found {
		return "", "", fmt.Errorf("%w: the key %q has no namespace", errCorrupt, data)
	}
	return namespace, key, nil
}

// checkName refuses a key that would not fit, or that would be another one's.
func checkName(namespace, key string) error {
	switch {
	case strings.Contains(namespace, "\x00"):
		return fmt.Errorf("%w: the namespace %q has a zero byte", ErrLimit, namespace)
	case len(namespace) > namespaceBytesMax:
		return fmt.Errorf(
			"%w: the namespace %q has more than %d bytes",
			ErrLimit,
			namespace,
			namespaceBytesMax,
		)
	case len(key) > keyBytesMax:
		return fmt.Errorf(
			"%w: a key of %q has %d bytes, at most %d fit",
			ErrLimit,
			namespace,
			len(key),
			keyBytesMax,
		)
	}
	return nil
}

// entry is a value of Fabric's state.
type entry struct {
	value, metadata []byte
	at              height
}

// Forms of a value in the ledger.
const (
	formDeleted = 0
	formEntry   = 1
)

// deleted is the value that parks a deletion.
var deleted = []byte{formDeleted}

// encode gives the bytes of an entry: form, block, transaction, length of the metadata, metadata
// and value.
func (e *entry) encode() []byte {
	out := make([]byte, 0, 1+3*binary.MaxVarintLen64+len(e.metadata)+len(e.value))
	out = append(out, formEntry)
	out = binary.AppendUvarint(out, e.at.BlockNum)
	out = binary.AppendUvarint(out, e.at.TxNum)
	out = binary.AppendUvarint(out, uint64(len(e.metadata)))
	return append(append(out, e.metadata...), e.value...)
}

// decodeEntry is the reverse of encode, and shares no bytes. Empty metadata is nil, and an empty
// value is not, as Fabric has it with goleveldb.
func decodeEntry(in []byte) (*entry, error) {
	r := reader{rest: in}
	if r.byte() != formEntry {
		r.failed = true
	}
	e := &entry{at: height{BlockNum: r.number(), TxNum: r.number()}}
	if metadata := r.bytes(r.number()); len(metadata) > 0 {
		e.metadata = bytes.Clone(metadata)
	}
	e.value = append([]byte{}, r.rest...)
	if r.failed {
		return nil, fmt.Errorf("%w: a value of %d bytes", errCorrupt, len(in))
	}
	return e, nil
}

// phase says whether a database is being changed by more than one commit.
type phase byte

const (
	phaseReady phase = iota
	// phaseMoving tells that a large block was decided, and its changes are being moved into place.
	phaseMoving
	// phaseDropping tells that the database is being deleted.
	phaseDropping
)

// tag names what a commit writes.
type tag [32]byte

// state is the record of a database, which each of its commits writes.
type state struct {
	phase     phase
	savepoint *height
	// writer is the process that wrote the record, and tag what it wrote with it.
	writer [16]byte
	tag    tag
}

const formState = 1

func (s *state) encode() []byte {
	out := append([]byte{formState, byte(s.phase)}, s.writer[:]...)
	out = append(out, s.tag[:]...)
	if s.savepoint != nil {
		out = binary.AppendUvarint(out, s.savepoint.BlockNum)
		out = binary.AppendUvarint(out, s.savepoint.TxNum)
	}
	return out
}

func decodeState(in []byte) (*state, error) {
	r := reader{rest: in}
	form := r.byte()
	s := &state{phase: phase(r.byte())}
	copy(s.writer[:], r.bytes(uint64(len(s.writer))))
	copy(s.tag[:], r.bytes(uint64(len(s.tag))))
	if len(r.rest) > 0 {
		s.savepoint = &height{BlockNum: r.number(), TxNum: r.number()}
	}
	if r.failed || form != formState || s.phase > phaseDropping || len(r.rest) > 0 {
		return nil, fmt.Errorf("%w: the record of a database, %x", errCorrupt, in[:min(len(in), 64)])
	}
	return s, nil
}

// reader reads from bytes, and remembers whether they were too few.
type reader struct {
	rest   []byte
	failed bool
}

func (r *reader) bytes(count uint64) []byte {
	if count > uint64(len(r.rest)) {
		r.failed, count = true, 0
	}
	out := r.rest[:count]
	r.rest = r.rest[count:]
	return out
}

func (r *reader) byte() byte {
	if got := r.bytes(1); len(got) == 1 {
		return got[0]
	}
	return 0
}

func (r *reader) number() uint64 {
	number, size := binary.Uvarint(r.rest)
	if size <= 0 {
		r.failed = true
		return 0
	}
	r.rest = r.rest[size:]
	return number
}
