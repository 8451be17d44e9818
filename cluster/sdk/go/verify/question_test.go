package verify

import (
	"slices"
	"testing"
)

// fileOf gives a case of the vectors by its name.
func fileOf(t testing.TB, vectorsName, name string) (*Verified, []byte, VKey) {
	t.Helper()
	var all struct {
		Vkey  string
		Cases []proofCase
	}
	vectors(t, vectorsName, &all)
	at := slices.IndexFunc(all.Cases, func(c proofCase) bool { return c.Name == name })
	if at < 0 {
		t.Fatalf("no case %q", name)
	}
	c, key := all.Cases[at], mustKey(t, all.Vkey)
	verified, err := Verify(c.File, key, &Options{Newer: c.Newer})
	if err != nil {
		t.Fatal(err)
	}
	return verified, c.File, key
}

func TestAProofAnswersNoOtherQuestion(t *testing.T) {
	keys, _, _ := fileOf(t, "proofs.json", "keys in two shards, without values")
	ranged, _, _ := fileOf(t, "proofs.json", "a range")
	receipt, _, _ := fileOf(t, "proofs.json", "a receipt")
	standing, _, _ := fileOf(t, "proofs.json", "a standing proof")
	journals, _, _ := fileOf(t, "ledgers.json", "compact: two journals and what was known")
	lineage, _, _ := fileOf(t, "ledgers.json", "compact: the newest of a lineage")
	purged, _, _ := fileOf(t, "ledgers.json", "a lineage behind a purge, with a journal that was kept")
	late, _, _ := fileOf(t, "ledgers.json", "the newest of a lineage behind a purge")
	ofTime, _, _ := fileOf(t, "times.json", "a tie")
	at := ofTime.Time.TimeMS
	version, other, epoch := keys.Header.Version, keys.Header.Version+1, keys.Header.Epoch+1
	two, three, many := uint64(2), uint64(3), uint64(1000)
	shown := uint64(len(purged.Lineage.Journals))
	known, request := journals.Journals, journals.Journals.Journals[0].Leaf.Request
	first, last := keys.Query.Keys[0].Key, keys.Query.Keys[len(keys.Query.Keys)-1].Key
	for i, c := range []struct {
		proof    *Verified
		question Question
		answered bool
	}{
		{keys, Question{}, true},
		{keys, Question{Version: &version, Subject: AboutKeys{last, first}}, true},
		{keys, Question{Version: &other}, false},
		{keys, Question{Epoch: &epoch}, false},
		{keys, Question{Subject: AboutKeys{first, []byte("of nobody")}}, false},
		{keys, Question{Subject: AboutRange{}}, false},
		{ranged, Question{Subject: AboutRange{ranged.Query.Low, ranged.Query.High}}, true},
		{ranged, Question{Subject: AboutRange{ranged.Query.Low, nil}}, false},
		{ranged, Question{Subject: AboutRange{nil, ranged.Query.High}}, false},
		{ranged, Question{Subject: AboutKeys{}}, false},
		{receipt, Question{Subject: AboutBatch(receipt.Receipt.Hash)}, true},
		{receipt, Question{Subject: AboutBatch{}}, false},
		{receipt, Question{Subject: AboutGrowth{}}, false},
		{standing, Question{Subject: AboutGrowth{standing.Standing.OldSize, &standing.Standing.OldRoot}}, true},
		{standing, Question{Subject: AboutGrowth{standing.Standing.OldSize, &Digest{}}}, false},
		{standing, Question{Subject: AboutGrowth{1, nil}}, false},
		{standing, Question{Version: &version}, false},
		{standing, Question{Subject: AboutBatch{}}, false},
		{journals, Question{Subject: AboutJournals{known.Ledger, []uint64{3, 9}, 0, Digest{}}}, true},
		{journals, Question{Subject: AboutJournals{known.Ledger, []uint64{3, 9}, known.KnownSize, known.KnownRoot}}, true},
		{journals, Question{Subject: AboutJournals{known.Ledger, []uint64{3, 9}, known.KnownSize, Digest{}}}, false},
		{journals, Question{Subject: AboutJournals{known.Ledger, []uint64{3}, 0, Digest{}}}, false},
		{journals, Question{Subject: AboutJournals{LedgerID{}, []uint64{3, 9}, 0, Digest{}}}, false},
		{journals, Question{Subject: AboutRequest(request)}, false},
		{journals, Question{Subject: AboutLineage{}}, false},
		{lineage, Question{Subject: AboutLineage{lineage.Lineage.Ledger, lineage.Lineage.Clue, &two}}, true},
		{lineage, Question{Subject: AboutLineage{lineage.Lineage.Ledger, lineage.Lineage.Clue, &three}}, false},
		{lineage, Question{Subject: AboutLineage{lineage.Lineage.Ledger, lineage.Lineage.Clue, &many}}, false},
		{lineage, Question{Subject: AboutLineage{lineage.Lineage.Ledger, lineage.Lineage.Clue, nil}}, false},
		{lineage, Question{Subject: AboutLineage{lineage.Lineage.Ledger, Digest{}, &two}}, false},
		{lineage, Question{Subject: AboutJournals{}}, false},
		{purged, Question{Subject: AboutLineage{purged.Lineage.Ledger, purged.Lineage.Clue, nil}}, true},
		{purged, Question{Subject: AboutLineage{purged.Lineage.Ledger, purged.Lineage.Clue, &many}}, true},
		{purged, Question{Subject: AboutLineage{purged.Lineage.Ledger, purged.Lineage.Clue, &shown}}, false},
		{late, Question{Subject: AboutLineage{late.Lineage.Ledger, late.Lineage.Clue, &two}}, true},
		{late, Question{Subject: AboutLineage{late.Lineage.Ledger, late.Lineage.Clue, nil}}, false},
		{ofTime, Question{Subject: AboutTime(at)}, true},
		{ofTime, Question{Subject: AboutTime(at + 1)}, false},
		{keys, Question{Subject: AboutTime(at)}, false},
	} {
		if err := c.proof.Answers(c.question); (err == nil) != c.answered || err != nil && stepOf(err) != "question" {
			t.Errorf("question %d: %v", i, err)
		}
	}
	founding, _, _ := fileOf(t, "ledgers.json", "compact: the founding")
	request = founding.Journals.Journals[0].Leaf.Request
	if err := founding.Answers(Question{Subject: AboutRequest(request)}); err != nil {
		t.Error(err)
	}
}

func TestKnownKeyChangesCountForAProof(t *testing.T) {
	var all struct {
		Cases []struct {
			Name    string
			File    hexBytes
			Results []struct{ Key string }
		}
	}
	vectors(t, "rotation.json", &all)
	files := map[string][]byte{}
	for _, c := range all.Cases {
		files[c.Name] = c.File
	}
	first := mustKey(t, all.Cases[0].Results[0].Key)
	newest, err := Verify(files["a receipt at 12 entries"], first, nil)
	if err != nil || len(newest.KeyChanges) != 2 {
		t.Fatal(err)
	}
	// The late checkpoint of a replaced key is refused by a verifier that knows of the change, even
	// where the file hides it.
	late := files["a checkpoint by the first key, late"]
	if _, err := Verify(late, first, &Options{Known: newest.KeyChanges}); stepOf(err) != "checkpoint" {
		t.Errorf("refused by %v", err)
	}
	forked := slices.Clone(newest.KeyChanges)
	forked[1].New[0] ^= 1
	if _, err := Verify(files["a receipt at 12 entries"], first, &Options{Known: forked}); stepOf(err) != "keys" {
		t.Errorf("refused by %v", err)
	}
}
