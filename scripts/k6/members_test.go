package main

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"testing"

	"coppice.dev/sdk/verify"
)

// checkpoint is a note of a log with three entries. Its signature is nobody's.
func checkpoint() []byte {
	root := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{7}, 32))
	signature := base64.StdEncoding.EncodeToString(make([]byte, 4+64))
	return []byte("coppice/test\n3\n" + root + "\n\n\u2014 coppice/test " + signature + "\n")
}

func looked() seen {
	return seen{Cluster: bytes.Repeat([]byte{5}, 16), Epoch: 2, Checkpoint: checkpoint()}
}

// called gives what a function of the module answers.
func called[T any](t *testing.T, work func(string) (string, error), given any) T {
	t.Helper()
	text, err := written(given)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := work(text)
	if err != nil {
		t.Fatal(err)
	}
	message, err := read[T]([]byte(answer))
	if err != nil {
		t.Fatal(err)
	}
	return message
}

func TestAFoundingIsSignedByItsOwner(t *testing.T) {
	wanted := toFound{seen: looked(), Name: "k6-2", Members: []string{"k6", "k6-1", "k6-2"}}
	made := called[signedRequest](t, founding, wanted)
	envelope, err := verify.DecodeEnvelope(made.Items[0].Envelope)
	if err != nil {
		t.Fatal(err)
	}
	founding, err := verify.DecodeFounding(envelope.Payload)
	if err != nil {
		t.Fatal(err)
	}
	owner := founding.Members[0]
	if founding.Name != "k6-2" || len(founding.Members) != 3 || owner.Name != "k6" || owner.Roles&verify.RoleOwner == 0 {
		t.Error("another ledger was founded")
	}
	if founding.Members[1].Roles&verify.RoleOwner != 0 || founding.Policy.Occult != 0 {
		t.Error("nobody else is an owner, and nobody occults")
	}
	if !ed25519.Verify(owner.Key[:], made.Signed, made.Signature) {
		t.Error("the owner has not signed")
	}
}

func TestARequestIsSignedWithItsPlace(t *testing.T) {
	journals := []draft{{Payload: []byte("a"), Clues: [][]byte{[]byte("lot-7")}}, {Payload: []byte("b")}}
	wanted := toAppend{
		seen: looked(), Name: "k6-2", Ledger: bytes.Repeat([]byte{4}, 16), Member: "k6-1", Lane: 3, Number: 9,
		Journals: journals,
	}
	made := called[signedRequest](t, request, wanted)
	signed, err := verify.DecodeSigned(made.Signed)
	if err != nil {
		t.Fatal(err)
	}
	if signed.Member != verify.MemberIDOf("k6-1") || signed.Lane != 3 || signed.Number != 9 || signed.Epoch != 2 ||
		signed.SeenSize != 3 || signed.SeenRoot[0] != 7 || signed.Cluster[0] != 5 || signed.Ledger[0] != 4 || signed.Items != 2 {
		t.Errorf("it has another place: %+v", signed)
	}
	public := keyOf("k6-2", "k6-1").Public().(ed25519.PublicKey)
	if hash := sha256.Sum256(made.Signed); !bytes.Equal(made.Hash, hash[:]) || !ed25519.Verify(public, made.Signed, made.Signature) {
		t.Error("the member has not signed this")
	}
	if again := called[signedRequest](t, request, wanted); bytes.Equal(again.Signed, made.Signed) {
		t.Error("two requests with the same journals have the same nonces")
	}
	for name, wrong := range map[string]toAppend{
		"lane":        {seen: looked(), Ledger: wanted.Ledger, Lane: 16, Number: 1, Journals: journals},
		"no journals": {seen: looked(), Ledger: wanted.Ledger, Number: 1},
		"ledger":      {seen: looked(), Ledger: []byte("short"), Number: 1, Journals: journals},
		"checkpoint":  {seen: seen{Cluster: looked().Cluster}, Ledger: wanted.Ledger, Number: 1, Journals: journals},
	} {
		text, _ := written(wrong)
		if _, err := request(text); err == nil {
			t.Errorf("%s: a wrong request was signed", name)
		}
	}
}
