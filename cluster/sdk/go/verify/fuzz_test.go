package verify

import (
	"bytes"
	"encoding/binary"
	"errors"
	"runtime"
	"slices"
	"testing"
)

// seedFiles adds the proof files of the vectors to the seeds of a fuzz target.
func seedFiles(f *testing.F, add func(file []byte)) (key VKey) {
	names := []string{"proofs.json", "ledgers.json", "cases.json", "rotation.json", "times.json", "anchors.json"}
	for _, name := range names {
		var all struct {
			Vkey                string
			Cases, Proofs, Lies []proofCase
		}
		vectors(f, name, &all)
		if all.Vkey != "" {
			key = mustKey(f, all.Vkey)
		}
		for _, c := range slices.Concat(all.Cases, all.Proofs, all.Lies) {
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

// FuzzQuery goes behind the signature and the state root, which no fuzzer can mend: no trees that
// have the shape of trees make an answer panic.
func FuzzQuery(f *testing.F) {
	seedFiles(f, func(file []byte) {
		parsed, err := decodeFile(file)
		if err != nil || parsed.query == nil {
			return
		}
		// The query begins behind the epoch part. Its place is found by decoding what is before it.
		r := &reader{rest: file[len(fileMagic)+2+16 : len(file)-checksumBytes]}
		decodeLogPart(r)
		decodeHeaderPart(r)
		decodeEpochPart(r)
		f.Add(slices.Clone(r.rest))
	})
	head := Stamp{Epoch: 9, Version: 1000}
	f.Fuzz(func(t *testing.T, payload []byte) {
		r := &reader{rest: payload}
		query := decodeQuery(r)
		if r.err != nil || len(query.shards) == 0 || query.checkMap(query.shards[len(query.shards)-1].index+1) != nil {
			return
		}
		lineage := decodeLineage(r)
		for _, part := range query.shards {
			for i := range part.trees {
				if _, err := part.trees[i].digest(head); err != nil {
					return
				}
			}
		}
		answer, err := query.answer()
		if err != nil || r.err != nil {
			return
		}
		check := journalCheck{ledger: lineage.ledger, header: &Header{Epoch: 9, Version: 1000}, parts: lineage.journals}
		if check.checkLeaves(false) != nil {
			return
		}
		_ = check.checkRequests()
		_, _ = check.checkEnvelopes()
		if from, err := lineageRange(lineage, answer); err == nil {
			_, _ = checkCells(lineage, answer.Records, check.leaves, from)
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
	var anchors struct{ Entries []hexBytes }
	vectors(f, "anchors.json", &anchors)
	for _, entry := range anchors.Entries {
		f.Add([]byte(entry))
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
		checkCanonical(t, input)
		_, _ = DecodeLedgerState(input)
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
	many := bytes.Repeat([]byte{0xff}, 8)
	for name, decode := range map[string]func(){
		"node":       func() { decodeNode(&reader{rest: []byte{0xff, 0xff, 3, 0xff, 0xff, 3, 0}}, 0) },
		"query":      func() { decodeQuery(&reader{rest: append([]byte{0}, many...)}) },
		"standing":   func() { decodeStanding(&reader{rest: append(make([]byte, 42), many...)}) },
		"map":        func() { _, _ = decodeShardMap(append([]byte{1}, many...)) },
		"operations": func() { _, _ = DecodeOperations(many) },
		"merge":      func() { _, _ = DecodeEntry(append([]byte{1}, many...)) },
		"batch":      func() { _, _ = DecodeEntry(append(make([]byte, 36), many...)) },
		"leaf":       func() { _, _ = DecodeLeaf(append(append([]byte{1}, make([]byte, 239)...), many...)) },
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		decode()
		runtime.ReadMemStats(&after)
		if used := after.TotalAlloc - before.TotalAlloc; used > 16<<10 {
			t.Errorf("%s: %d bytes are allocated", name, used)
		}
	}
}

func TestEachNumberHasOneSpelling(t *testing.T) {
	for _, value := range []uint64{0, 1, 127, 128, 16_383, 16_384, 1<<63 - 1, 1 << 63, 1<<64 - 1} {
		w := writer{}
		w.short(value)
		r := reader{rest: w}
		if got := r.short(); got != value || r.end() != nil {
			t.Errorf("%d is read as %d: %v", value, got, r.err)
		}
	}
	ones := bytes.Repeat([]byte{0xff}, 9)
	for _, bad := range [][]byte{
		{}, {0x80}, {0x80, 0}, {0xff, 0x80, 0}, append(ones, 2), append(ones, 0x81, 0), append(ones, 0xff),
	} {
		r := reader{rest: slices.Clone(bad)}
		if r.short(); r.err == nil {
			t.Errorf("%x is taken for a number", bad)
		}
	}
	for _, flag := range []byte{2, 0xff} {
		r := reader{rest: []byte{flag}}
		if r.flag(); r.err == nil {
			t.Errorf("%d is taken for a flag", flag)
		}
	}
	for _, text := range []string{"AB==", "AAA", "AA==\n", "A A=", "AA==AA=="} {
		if _, err := decodeBase64(text); err == nil {
			t.Errorf("%q is taken for base64", text)
		}
	}
	if b, err := decodeBase64("AA=="); err != nil || !bytes.Equal(b, []byte{0}) {
		t.Error(err)
	}
}
