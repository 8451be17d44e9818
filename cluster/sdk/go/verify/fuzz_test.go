package verify

import (
	"encoding/binary"
	"errors"
	"runtime"
	"slices"
	"testing"
)

// seedFiles adds the proof files of the vectors to the seeds of a fuzz target.
func seedFiles(f *testing.F, add func(file []byte)) (key VKey) {
	for _, name := range []string{"proofs.json", "ledgers.json", "cases.json", "rotation.json"} {
		var all struct {
			Vkey  string
			Cases []proofCase
		}
		vectors(f, name, &all)
		if all.Vkey != "" {
			key = mustKey(f, all.Vkey)
		}
		for _, c := range all.Cases {
			if len(c.File) < 4096 {
				add(c.File)
			}
		}
	}
	return key
}

// FuzzVerify holds that no file makes the verifier panic, and that all of its errors have a step.
func FuzzVerify(f *testing.F) {
	key := seedFiles(f, func(file []byte) { f.Add(file, []byte(nil)) })
	f.Add([]byte("coppice-proof"), []byte("coppice-proof"))
	policy, err := ParsePolicy([]byte("log " + key.String() + "\nquorum none\n"))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, file, newer []byte) {
		if len(file) > checksumBytes {
			file = slices.Clone(file)
			content := file[:len(file)-checksumBytes]
			binary.LittleEndian.PutUint64(file[len(content):], checksum(content))
		}
		for _, options := range []*Options{nil, {Newer: newer}, {Newer: file}} {
			_, err := Verify(file, key, options)
			_, underPolicy := VerifyUnder(file, policy, options)
			var step *Error
			if err != nil && !errors.As(err, &step) || underPolicy != nil && !errors.As(underPolicy, &step) {
				t.Fatal(err, underPolicy)
			}
		}
	})
}

// FuzzDecoders holds that no bytes make a decoder panic.
func FuzzDecoders(f *testing.F) {
	var log struct {
		Entries  []struct{ Bytes hexBytes }
		Versions []struct{ Journal []hexBytes }
	}
	vectors(f, "log.json", &log)
	for _, entry := range log.Entries {
		f.Add([]byte(entry.Bytes))
	}
	for _, version := range log.Versions {
		for _, entry := range version.Journal {
			f.Add([]byte(entry))
		}
	}
	var rounds struct{ Rounds []storedRound }
	vectors(f, "appends.json", &rounds)
	for _, request := range rounds.Rounds[0].Requests {
		f.Add([]byte(request.Signed))
		f.Add([]byte(request.Items[0].Envelope))
	}
	var notes struct{ Notes []struct{ Note string } }
	vectors(f, "notes.json", &notes)
	for _, note := range notes.Notes {
		f.Add([]byte(note.Note))
	}
	f.Add([]byte(policyText("group g 2 w2 w3 w4\nquorum g\n")))
	key := mustKey(f, logVKey())
	f.Fuzz(func(t *testing.T, input []byte) {
		if header, err := DecodeHeader(input); err == nil && header == nil {
			t.Fatal("neither a header nor an error")
		}
		_, _ = DecodeEntry(input)
		_, _ = DecodeOperations(input)
		_, _ = DecodeEnvelope(input)
		_, _ = DecodeLeaf(input)
		_, _ = decodeFounding(input)
		_, _ = decodeChangesOfMembers(input)
		_, _ = decodeMember(input)
		_, _ = decodeHead(input)
		_, _ = decodeShardMap(input)
		_, _ = ParsePolicy(input)
		_, _ = OpenCheckpoint(input, key)
		_, _ = ParseVKey(string(input))
	})
}

// FuzzAudit holds that neither headers nor journals make an audit panic.
func FuzzAudit(f *testing.F) {
	var all struct {
		Cases []struct{ Log []auditEntry }
	}
	vectors(f, "audits.json", &all)
	sound := all.Cases[0].Log
	for _, entry := range sound {
		var journal, list []byte
		if len(entry.Journal) > 0 {
			journal = entry.Journal[0]
		}
		for _, lists := range entry.Lists {
			list = lists[0]
		}
		f.Add([]byte(entry.Header), journal, list)
	}
	f.Fuzz(func(t *testing.T, header, journal, list []byte) {
		headers := &HeaderLog{}
		for _, entry := range sound[:2] {
			if err := headers.Append(entry.Header); err != nil {
				t.Fatal(err)
			}
		}
		_ = headers.Append(header)
		replay, err := NewReplay(headers)
		if err != nil {
			t.Fatal(err)
		}
		_ = replay.Version(VersionJournal{Entries: [][]byte{journal}, Lists: map[uint32][][]byte{0: {list}}})
	})
}

// A file that is nothing but the least entries takes the most memory for its size.
func TestMemoryIsInProportionToTheFile(t *testing.T) {
	const entries = 60_000
	w := writer{}
	w.bytes(fileMagic)
	w.u8(fileFormat)
	w.u8(uint8(FileQuery))
	w.bytes(make([]byte, 16))
	w.str32(nil)
	w.str16(nil)
	w.u16(0)
	w.u16(0)
	w.str16(nil)
	w.u16(0)
	w.bytes(make([]byte, 4+16+1+2))
	w.u8(1)
	w.str16(nil)
	w.u8(0)
	const shards = 20
	w.u16(shards)
	for shard := range uint32(shards) {
		w.u32(shard)
		w.u32(shard)
		w.str16(nil)
		w.u8(0)
		w.u64(0)
		w.u8(1)
		w.u8(0)
		w.short(entries)
		w.u8(1)
		w.short(entries)
		w.short(entries)
		for i := range uint64(entries) {
			w.short(i)
			w.bytes([]byte{1, 0, 0, 1, 'k'})
		}
		w.short(0)
	}
	w.u16(0)
	w.u8(0)
	w.u64(checksum(w))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	parsed, err := decodeFile(w)
	runtime.ReadMemStats(&after)
	if err != nil {
		t.Fatal(err)
	}
	used := after.TotalAlloc - before.TotalAlloc
	t.Logf("a file of %d bytes takes %d when parsed", len(w), used)
	if used > 12*uint64(len(w)) {
		t.Error("it takes more than twelve times its size")
	}
	runtime.KeepAlive(parsed)
}

func (w *writer) short(v uint64) { *w = binary.AppendUvarint(*w, v) }

// A list whose length is a lie must not be made before its bytes are there.
func TestStatedLengthsAllocateNothing(t *testing.T) {
	head := slices.Concat(fileMagic, []byte{fileFormat, byte(FileStanding)}, make([]byte, 16))
	for _, lie := range [][]byte{{0xff, 0xff, 0xff, 0xff}, {0, 0, 0, 0, 0xff, 0xff}, {0, 0, 0, 0, 0, 0, 0xff, 0xff}} {
		file := writer(slices.Concat(head, lie))
		file.u64(checksum(file))
		if allocated := testing.AllocsPerRun(10, func() { _, _ = decodeFile(file) }); allocated > 20 {
			t.Errorf("%v allocations", allocated)
		}
		if _, err := decodeFile(file); err == nil {
			t.Error("accepted")
		}
	}
}
