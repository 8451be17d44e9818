package verify

import (
	"bytes"
	"testing"
)

// splitLog takes the log part out of a file, as a coordinator does.
func splitLog(t testing.TB, file []byte) (log, rest []byte) {
	t.Helper()
	r := &reader{rest: file[beforeLog:]}
	decodeLogPart(r)
	if r.err != nil {
		t.Fatal(r.err)
	}
	end := len(file) - len(r.rest)
	return file[beforeLog:end], append(bytes.Clone(file[:beforeLog]), file[end:]...)
}

func TestAFileIsJoinedFromItsLogPartAndTheRest(t *testing.T) {
	if beforeLog != len(fileMagic)+2+len(ClusterID{}) {
		t.Fatal("the log part begins elsewhere")
	}
	for name, vectorsName := range map[string]string{
		"keys in two shards, without values": "proofs.json", "a range": "proofs.json", "a tie": "times.json",
	} {
		_, file, key := fileOf(t, vectorsName, name)
		log, rest := splitLog(t, file)
		joined := JoinLog(log, rest)
		if !bytes.Equal(joined, file) {
			t.Errorf("%s: the joined file is another", name)
		}
		for what, damaged := range map[string][]byte{
			"no log part": JoinLog(nil, rest), "two log parts": JoinLog(append(bytes.Clone(log), log...), rest),
			"a log part without its end": JoinLog(log[:len(log)-1], rest), "no rest": JoinLog(log, nil),
			"a short rest": JoinLog(log, rest[:7]), "nothing": JoinLog(nil, nil),
		} {
			if _, err := Verify(damaged, key, nil); err == nil {
				t.Errorf("%s: %s is believed", name, what)
			}
		}
	}
}

func TestAProofShowsSinceWhenAKeyDidNotChange(t *testing.T) {
	keys, file, _ := fileOf(t, "proofs.json", "keys in two shards, without values")
	parsed, err := decodeFile(file)
	if err != nil {
		t.Fatal(err)
	}
	found, absent := 0, 0
	for _, answer := range keys.Query.Keys {
		if answer.Record != nil {
			found++
			if answer.UnchangedSince != answer.Record.Stamp.Version {
				t.Errorf("%s: %d", answer.Key, answer.UnchangedSince)
			}
			continue
		}
		absent++
		for _, part := range parsed.query.shards {
			if part.shard.holds(answer.Key) && answer.UnchangedSince != part.version {
				t.Errorf("%s: %d, and its shard %d", answer.Key, answer.UnchangedSince, part.version)
			}
		}
		if answer.UnchangedSince == 0 || answer.UnchangedSince > keys.Header.Version {
			t.Errorf("%s: %d", answer.Key, answer.UnchangedSince)
		}
	}
	if found == 0 || absent == 0 {
		t.Fatalf("%d found, %d absent", found, absent)
	}
}
