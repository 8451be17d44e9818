package verify

import (
	"crypto/sha256"
	"encoding/binary"
)

// Tags of section 1: the first byte of each hash input.
const (
	tagLogEntry     = 0x00
	tagListNode     = 0x01
	tagSigned       = 0x02
	tagLeaf         = 0x04
	tagLedger       = 0x05
	tagItem         = 0x06
	tagChain        = 0x07
	tagClue         = 0x08
	tagMember       = 0x09
	tagPlace        = 0x0a
	tagRecord       = 0x10
	tagLeafNode     = 0x11
	tagEntry        = 0x12
	tagTree         = 0x13
	tagForest       = 0x14
	tagFilter       = 0x15
	tagStateLeaf    = 0x16
	tagShardMap     = 0x17
	tagEpoch        = 0x18
	tagJournalLeaf  = 0x19
	tagOperations   = 0x1a
	tagMetadata     = 0x1b
	tagInnerNode    = 0x1c
	tagBatch        = 0x1d
	tagChecksum     = 0x1e
	tagKeyChange    = 0x1f
	putMark         = 0
	tombstoneMark   = 1
	checksumBytes   = 8
	smallInputBytes = 160
)

// hashOf is SHA-256 of a tag and an input.
func hashOf(tag byte, input []byte) Digest {
	h := sha256.New()
	h.Write([]byte{tag})
	h.Write(input)
	var d Digest
	h.Sum(d[:0])
	return d
}

func sha(input []byte) Digest { return sha256.Sum256(input) }

func logEntryHash(header []byte) Digest { return hashOf(tagLogEntry, header) }

func nodeHash(left, right *Digest) Digest {
	var input [65]byte
	input[0] = tagListNode
	copy(input[1:], left[:])
	copy(input[33:], right[:])
	return sha256.Sum256(input[:])
}

// recordHash hashes a put, or a tombstone if put is false.
func recordHash(key []byte, stamp Stamp, put bool, length uint32, value *Digest) Digest {
	w := make(writer, 0, smallInputBytes+len(key))
	w.u8(tagRecord)
	if put {
		w.u8(putMark)
	} else {
		w.u8(tombstoneMark)
	}
	w.stamp(stamp)
	w.str16(key)
	if put {
		w.u32(length)
		w.digest(*value)
	}
	return sha256.Sum256(w)
}

func leafNodeHash(count int, list Digest) Digest {
	w := make(writer, 0, smallInputBytes)
	w.u8(tagLeafNode)
	w.u16(uint16(count))
	w.digest(list)
	return sha256.Sum256(w)
}

func innerNodeHash(level uint8, count int, list Digest) Digest {
	w := make(writer, 0, smallInputBytes)
	w.u8(tagInnerNode)
	w.u8(level)
	w.u16(uint16(count))
	w.digest(list)
	return sha256.Sum256(w)
}

func entryHash(separator []byte, child Digest) Digest {
	w := make(writer, 0, smallInputBytes+len(separator))
	w.u8(tagEntry)
	w.str16(separator)
	w.digest(child)
	return sha256.Sum256(w)
}

func treeDigest(level uint8, entries uint64, root Digest) Digest {
	w := make(writer, 0, smallInputBytes)
	w.u8(tagTree)
	w.u8(level)
	w.u64(entries)
	w.digest(root)
	return sha256.Sum256(w)
}

func shardDigest(trees []Digest) Digest {
	w := make(writer, 0, smallInputBytes)
	w.u8(tagForest)
	w.u8(1)
	w.u8(uint8(len(trees)))
	for _, tree := range trees {
		w.digest(tree)
	}
	return sha256.Sum256(w)
}

var (
	emptyRoot       = Digest(sha256.Sum256(nil))
	emptyLeafHash   = leafNodeHash(0, emptyRoot)
	emptyTreeDigest = treeDigest(0, 0, emptyLeafHash)
	emptyShard      = shardDigest([]Digest{emptyTreeDigest})
)

func stateLeafHash(shard uint32, low, high []byte, version uint64, digest Digest) Digest {
	w := make(writer, 0, smallInputBytes+len(low)+len(high))
	w.u8(tagStateLeaf)
	w.u32(shard)
	w.str16(low)
	w.optStr16(high)
	w.u64(version)
	w.digest(digest)
	return sha256.Sum256(w)
}

func epochLeafHash(pair Pair) Digest {
	w := make(writer, 0, smallInputBytes)
	w.u8(tagEpoch)
	w.u64(pair.Epoch)
	w.u64(pair.Base)
	return sha256.Sum256(w)
}

// JournalLeafHash is the name of a journal entry, by which `Batch` asks for it.
func JournalLeafHash(entry []byte) Digest { return hashOf(tagJournalLeaf, entry) }

func checksum(content []byte) uint64 {
	d := hashOf(tagChecksum, content)
	return binary.LittleEndian.Uint64(d[:])
}

// filterHash gives the two numbers by which filters place a key (section 5).
func filterHash(key []byte) (uint64, uint64) {
	d := hashOf(tagFilter, key)
	return binary.LittleEndian.Uint64(d[:]), binary.LittleEndian.Uint64(d[8:])
}
