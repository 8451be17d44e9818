package verify

import (
	"bytes"
	"errors"
	"fmt"
)

// Params are the parameters of a ledger, which its genesis header fixes (section 9).
type Params struct {
	ProtocolVersion uint32
	KeyBytesMax     uint32
	ValueBytesMax   uint32
	BatchBytesMax   uint32
	MessageBytesMax uint32
	SessionWindow   uint32
	Capacity        uint32
	Fanout          uint16
	NodeBytes       uint32
	InlineBytes     uint32
	FilterBits      uint16
	TreeLimit       uint8
	TierRatio       uint8
	JournalsKept    bool
}

// Protocol versions, and the formats that go with them.
const (
	protocol2 = 2
	protocol3 = 3
	format1   = 1
	format2   = 2
)

func decodeParams(r *reader) (p Params) {
	format := r.u8()
	p = Params{
		ProtocolVersion: r.u32(), KeyBytesMax: r.u32(), ValueBytesMax: r.u32(), BatchBytesMax: r.u32(),
		MessageBytesMax: r.u32(), SessionWindow: r.u32(), Capacity: r.u32(), Fanout: r.u16(),
		NodeBytes: r.u32(), InlineBytes: r.u32(), FilterBits: r.u16(), TreeLimit: r.u8(), TierRatio: r.u8(),
		JournalsKept: r.flag(),
	}
	if r.err == nil && uint32(format)+1 != p.ProtocolVersion {
		r.fail("the format of the parameters is not that of their protocol version")
	}
	if r.err == nil {
		r.err = p.check()
	}
	return p
}

// check compares the parameters with the limits of section 16.
func (p *Params) check() error {
	type limit struct {
		name        string
		value       uint32
		least, most uint32
	}
	least := limit{"key_bytes_max", p.KeyBytesMax, 1, keyBytesMax}
	value := limit{"value_bytes_max", p.ValueBytesMax, 1, 16 << 20}
	inline := limit{"inline_bytes", p.InlineBytes, 0, 1024}
	switch p.ProtocolVersion {
	case protocol2:
	case protocol3:
		least.least, value.least, inline.most = 256, 65_536, 128
		if !p.JournalsKept {
			return errors.New("a ledger of version 3 keeps its journals")
		}
	default:
		return errors.New("an unknown protocol version")
	}
	if p.KeyBytesMax > keyBytesMax {
		return errors.New("key_bytes_max is above 512")
	}
	for _, l := range []limit{
		least, value,
		{"batch_bytes_max", p.BatchBytesMax, p.ValueBytesMax, 64 << 20},
		{"message_bytes_max", p.MessageBytesMax, p.BatchBytesMax, 96 << 20},
		{"session_window", p.SessionWindow, 1, 65_536},
		{"capacity", p.Capacity, 8, 1 << 28},
		{"fanout", uint32(p.Fanout), 4, 1024},
		{"node_bytes", p.NodeBytes, 4 * (72 + p.KeyBytesMax), 8192},
		inline,
		{"filter_bits", uint32(p.FilterBits), 4, 32},
		{"tree_limit", uint32(p.TreeLimit), 3, treesMax},
		{"tier_ratio", uint32(p.TierRatio), 2, 64},
	} {
		if l.value < l.least || l.value > l.most {
			return fmt.Errorf("%s is not from %d to %d", l.name, l.least, l.most)
		}
	}
	return nil
}

// Shard is one range of keys of a shard map. A nil High is the end of the key space.
type Shard struct {
	ID     uint32
	Parent uint32
	Low    []byte
	High   []byte
}

// holds tells whether a key lies in the shard's range.
func (s *Shard) holds(key []byte) bool {
	return bytes.Compare(s.Low, key) <= 0 && (s.High == nil || bytes.Compare(key, s.High) < 0)
}

func decodeShardMap(encoded []byte) ([]Shard, error) {
	r := reader{rest: encoded}
	if format := r.u8(); r.err == nil && format != 1 {
		r.fail("a shard map of another format")
	}
	shards := make([]Shard, r.count32(11))
	ids := make(map[uint32]bool, len(shards))
	for i := range shards {
		shard := Shard{ID: r.u32(), Parent: r.u32(), Low: r.str16(0, keyBytesMax, "a bound")}
		if r.flag() {
			shard.High = r.str16(1, keyBytesMax, "a bound")
		}
		if r.err != nil {
			return nil, r.err
		}
		if shard.ID == noShard || ids[shard.ID] {
			return nil, errors.New("two shards have one id, or one has none")
		}
		ids[shard.ID] = true
		var before []byte
		if i > 0 {
			before = shards[i-1].High
		}
		last := i == len(shards)-1
		switch {
		case !bytes.Equal(shard.Low, before) || i > 0 && before == nil:
			return nil, errors.New("shards do not join")
		case last != (shard.High == nil):
			return nil, errors.New("the last shard alone has no end")
		case shard.High != nil && bytes.Compare(shard.Low, shard.High) >= 0:
			return nil, errors.New("a shard ends where it begins, or below")
		}
		shards[i] = shard
	}
	if err := r.end(); err != nil {
		return nil, err
	}
	if len(shards) == 0 {
		return nil, errors.New("a shard map without shards")
	}
	return shards, nil
}

// emptyState is the state root of a map of empty shards.
func emptyState(shards []Shard) Digest {
	leaves := make([]Digest, len(shards))
	for i, shard := range shards {
		leaves[i] = stateLeafHash(shard.ID, shard.Low, shard.High, 0, emptyShard)
	}
	return MerkleRoot(leaves)
}

// ShardMapHash names a shard map in each header.
func ShardMapHash(shards []Shard) Digest {
	w := writer{}
	w.u8(1)
	w.u32(uint32(len(shards)))
	for _, shard := range shards {
		w.u32(shard.ID)
		w.u32(shard.Parent)
		w.str16(shard.Low)
		w.optStr16(shard.High)
	}
	return hashOf(tagShardMap, w)
}
