package verify

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
)

type storedRound struct {
	Stamp    Stamp
	NowMS    uint64 `json:"now_ms"`
	Requests []struct {
		Note      string
		Signed    hexBytes
		Signature hexBytes
		Items     []struct {
			Kind     uint8
			Envelope hexBytes
		}
		Refused *string
		Append  *struct {
			Ledger     hexBytes
			FirstJSN   uint64 `json:"first_jsn"`
			LeavesRoot Digest `json:"leaves_root"`
			Operations [][2]*hexBytes
		}
	}
	Heads []struct {
		Ledger       hexBytes
		Before, Size uint64
		Root         Digest
		Operations   [][2]*hexBytes
	}
}

func sameRecordsAs(got []PutRecord, stored [][2]*hexBytes) bool {
	if len(got) != len(stored) {
		return false
	}
	for i := range got {
		deletes := stored[i][1] == nil
		if !bytes.Equal(got[i].Key, *stored[i][0]) || deletes != (got[i].Value == nil) ||
			!deletes && !bytes.Equal(got[i].Value, *stored[i][1]) {
			return false
		}
	}
	return true
}

func TestRequestsAreJudgedAsTheVectorsSay(t *testing.T) {
	refused := map[string]int{}
	for _, name := range []string{"appends.json", "ledgers.json"} {
		var all struct {
			Cluster hexBytes
			Rounds  []storedRound
		}
		vectors(t, name, &all)
		state, times := map[string][]byte{}, map[uint64]uint64{}
		ground := func(key []byte) []byte { return state[string(key)] }
		for _, stored := range all.Rounds {
			round := NewRound(ClusterID(all.Cluster), stored.Stamp, ground, nil)
			round.At(stored.NowMS, func(version uint64) (uint64, bool) {
				time, known := times[version]
				return time, known
			})
			var puts []PutRecord
			for i, request := range stored.Requests {
				sent := Request{Signed: request.Signed, Signature: [64]byte(request.Signature)}
				for _, item := range request.Items {
					sent.Items = append(sent.Items, Item{Kind: item.Kind, Envelope: item.Envelope})
				}
				appended, err := round.Append(sent)
				var refusal Refusal
				if request.Refused != nil {
					if !errors.As(err, &refusal) || string(refusal) != *request.Refused {
						t.Errorf("%s, %s, request %d, %s: %v, not %s", name, stored.Stamp, i, request.Note, err, *request.Refused)
					}
					refused[*request.Refused]++
					continue
				}
				if err != nil {
					t.Errorf("%s, %s, request %d, %s: %v", name, stored.Stamp, i, request.Note, err)
					continue
				}
				wanted := request.Append
				if !bytes.Equal(appended.Ledger[:], wanted.Ledger) || appended.FirstJSN != wanted.FirstJSN ||
					appended.LeavesRoot != wanted.LeavesRoot || !sameRecordsAs(appended.Records, wanted.Operations) {
					t.Errorf("%s, %s, request %d, %s: something else follows", name, stored.Stamp, i, request.Note)
				}
				puts = append(puts, appended.Records...)
			}
			heads := round.Close()
			if len(heads) != len(stored.Heads) {
				t.Fatalf("%s, %s: %d heads", name, stored.Stamp, len(heads))
			}
			for i, head := range heads {
				wanted := stored.Heads[i]
				if !bytes.Equal(head.Ledger[:], wanted.Ledger) || head.SizeBefore != wanted.Before || head.Size != wanted.Size ||
					head.Root != wanted.Root || !sameRecordsAs(head.Records, wanted.Operations) {
					t.Errorf("%s, %s: head %d is another", name, stored.Stamp, i)
				}
				puts = append(puts, head.Records...)
			}
			for _, put := range puts {
				state[string(put.Key)] = put.Value
			}
			times[stored.Stamp.Version] = stored.NowMS
		}
	}
	for _, word := range []Refusal{
		RefusedForm, RefusedEpoch, RefusedLedger, RefusedName, RefusedMember, RefusedSignature, RefusedRole, RefusedLane,
		RefusedSize, RefusedCount, RefusedChange, RefusedApproval, RefusedOrder,
		RefusedClosed,
	} {
		if refused[string(word)] == 0 {
			t.Errorf("nothing is refused by %s", word)
		}
	}
}

func TestListsOfLedgersAreThoseOfTheVectors(t *testing.T) {
	var all struct {
		Lists []struct {
			Head   hexBytes
			Leaves uint64
			Root   Digest
		}
	}
	vectors(t, "ledgers.json", &all)
	for _, list := range all.Lists {
		head := &ledgerHead{}
		for i := range list.Leaves {
			head.push(LedgerID{}, sha(binary.LittleEndian.AppendUint64(nil, i)))
		}
		if head.root() != list.Root || !bytes.Equal(head.encode(), list.Head) {
			t.Errorf("another list of %d leaves", list.Leaves)
		}
		decoded, err := decodeHead(list.Head)
		if err != nil || decoded.root() != list.Root {
			t.Errorf("the head of %d leaves: %v", list.Leaves, err)
		}
	}
}
