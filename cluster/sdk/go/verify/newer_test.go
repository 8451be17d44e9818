package verify

import (
	"bytes"
	"crypto/ed25519"
	"slices"
	"testing"
)

// inclusionPath and consistencyPath make the paths of RFC 9162, sections 2.1.3.1 and 2.1.4.1.
func inclusionPath(leaves []Digest, index int) hashList {
	if len(leaves) < 2 {
		return nil
	}
	k := int(split(uint64(len(leaves))))
	path, other := hashList(nil), Digest{}
	if index < k {
		path, other = inclusionPath(leaves[:k], index), MerkleRoot(leaves[k:])
	} else {
		path, other = inclusionPath(leaves[k:], index-k), MerkleRoot(leaves[:k])
	}
	return append(path, other[:]...)
}

func consistencyPath(leaves []Digest, old int, whole bool) hashList {
	if old == len(leaves) {
		if whole {
			return nil
		}
		root := MerkleRoot(leaves)
		return root[:]
	}
	k := int(split(uint64(len(leaves))))
	path, other := hashList(nil), Digest{}
	if old <= k {
		path, other = consistencyPath(leaves[:k], old, whole), MerkleRoot(leaves[k:])
	} else {
		path, other = consistencyPath(leaves[k:], old-k, false), MerkleRoot(leaves[:k])
	}
	return append(path, other[:]...)
}

func TestPathsAreCheckedAtEachPlace(t *testing.T) {
	var leaves []Digest
	for size := 1; size <= 20; size++ {
		leaves = append(leaves, sha([]byte{byte(size)}))
		root := MerkleRoot(leaves)
		for at := range size {
			path := inclusionPath(leaves, at)
			if err := checkInclusion(leaves[at], uint64(at), uint64(size), path, root); err != nil {
				t.Fatalf("%d in %d: %v", at, size, err)
			}
			for wrong := range size + 1 {
				if wrong != at && checkInclusion(leaves[at], uint64(wrong), uint64(size), path, root) == nil {
					t.Fatalf("%d is shown at %d of %d", at, wrong, size)
				}
			}
			long := append(slices.Clone(path), root[:]...)
			if checkInclusion(leaves[at], uint64(at), uint64(size), long, root) == nil ||
				len(path) > 0 && checkInclusion(leaves[at], uint64(at), uint64(size), path[32:], root) == nil {
				t.Fatalf("a path of another length, %d in %d", at, size)
			}
			old := at + 1
			path = consistencyPath(leaves, old, true)
			oldRoot := MerkleRoot(leaves[:old])
			if err := checkConsistency(uint64(old), oldRoot, uint64(size), root, path); err != nil {
				t.Fatalf("%d to %d: %v", old, size, err)
			}
			long = append(slices.Clone(path), root[:]...)
			if checkConsistency(uint64(old), root, uint64(size), oldRoot, path) == nil && old != size ||
				checkConsistency(uint64(old), oldRoot, uint64(size), root, long) == nil ||
				checkConsistency(uint64(old), Digest{}, uint64(size), root, path) == nil ||
				checkConsistency(uint64(old), oldRoot, uint64(size), Digest{}, path) == nil {
				t.Fatalf("a lie about %d to %d", old, size)
			}
			for wrong := range size + 2 {
				if wrong != old && checkConsistency(uint64(wrong), oldRoot, uint64(size), root, path) == nil {
					t.Fatalf("the path from %d is one from %d", old, wrong)
				}
			}
		}
	}
}

// standingFile makes a standing proof of a log that is made up, but for the newest header and the
// key changes of a file. The seeds of the vectors' keys are known.
func standingFile(t *testing.T, of []byte, signer VKey, seed byte, size, old int, pairs []Pair) []byte {
	t.Helper()
	private := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, 32))
	if PublicKey(private.Public().(ed25519.PublicKey)) != signer.Key {
		t.Fatal("the vectors have another key")
	}
	parsed, err := decodeFile(of)
	if err != nil {
		t.Fatal(err)
	}
	leaves := make([]Digest, size)
	for i := range leaves {
		leaves[i] = sha([]byte{byte(i), 1})
	}
	leaves[size-1] = logEntryHash(parsed.log.newest)
	changes, err := decodeChanges(parsed.log.changes, parsed.cluster)
	if err != nil {
		t.Fatal(err)
	}
	for i, change := range changes {
		leaves[change.Sequence] = logEntryHash(parsed.log.changes[i].header)
	}
	text := Checkpoint{Origin: signer.Name, Size: uint64(size), Root: MerkleRoot(leaves)}.text()
	line := signatureLineOf(signer.Name, algorithmEd25519, signer.Key[:], ed25519.Sign(private, []byte(text)))
	w := append(writer{}, fileMagic...)
	path := func(hashes hashList) {
		w.u16(uint16(hashes.len()))
		w.bytes(hashes)
	}
	w.u8(fileFormat)
	w.u8(uint8(FileStanding))
	w.bytes(parsed.cluster[:])
	w.str32([]byte(text + "\n" + line))
	w.str16(parsed.log.newest)
	path(inclusionPath(leaves, size-1))
	w.u16(uint16(len(changes)))
	for i, change := range changes {
		w.str16(parsed.log.changes[i].header)
		path(inclusionPath(leaves, int(change.Sequence)))
	}
	w.u64(uint64(old))
	w.digest(MerkleRoot(leaves[:old]))
	path(consistencyPath(leaves, old, true))
	w.u16(uint16(len(pairs)))
	for _, pair := range pairs {
		w.u64(pair.Epoch)
		w.u64(pair.Base)
	}
	w.u64(checksum(w))
	return w
}

// A fork that the ledger's key has signed, and which is sound by itself.
func TestANewerCheckpointIsOfTheSameLog(t *testing.T) {
	standing, file, key := fileOf(t, "proofs.json", "a standing proof")
	// The newest header is entry 45, so each log of it has 46 entries.
	fork := func(old int) []byte { return standingFile(t, file, key, 7, 46, old, standing.Standing.Pairs) }
	if _, err := Verify(fork(30), key, nil); err != nil {
		t.Fatal(err)
	}
	for _, old := range []int{30, 46} {
		if _, err := Verify(file, key, &Options{Newer: fork(old)}); stepOf(err) != "standing" {
			t.Errorf("a fork of one size, from %d: %v", old, err)
		}
	}
}

func TestANewerCheckpointExtendsThatOfTheProof(t *testing.T) {
	var all struct {
		Cases []struct {
			Name        string
			File, Newer hexBytes
			Results     []struct{ Key string }
		}
	}
	vectors(t, "rotation.json", &all)
	newer, files := map[string][]byte{}, map[string][]byte{}
	for _, c := range all.Cases {
		files[c.Name], newer[c.Name] = c.File, c.Newer
	}
	key := mustKey(t, all.Cases[0].Results[0].Key)
	three, eight := "a receipt at 3 entries, with a newer checkpoint", "a receipt at 8 entries, with a newer checkpoint"
	at3, at8, from3, from8 := files[three], files[eight], newer[three], newer[eight]
	at12 := files["a receipt at 12 entries"]
	verified, err := Verify(at12, key, nil)
	if err != nil {
		t.Fatal(err)
	}
	fork := func(old int) []byte {
		file := standingFile(t, at12, verified.SignedBy, 9, 12, old, []Pair{{}})
		if _, err := Verify(file, key, nil); err != nil {
			t.Fatal(err)
		}
		return file
	}
	for name, c := range map[string]struct {
		file, newer []byte
		step        string
	}{
		"3 and from 3": {at3, from3, ""}, "8 and from 8": {at8, from8, ""},
		"3 and from 8": {at3, from8, "standing"}, "8 and from 3": {at8, from3, "standing"},
		"12 and from 3":       {at12, from3, ""},
		"3 and a fork from 3": {at3, fork(3), "standing"}, "8 and a fork from 8": {at8, fork(8), "standing"},
	} {
		if _, err := Verify(c.file, key, &Options{Newer: c.newer}); stepOf(err) != c.step {
			t.Errorf("%s: %v", name, err)
		}
	}
}
