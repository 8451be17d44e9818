package main

import (
	"encoding/json"
	"errors"

	"coppice.dev/sdk/verify"
)

// The types below are messages of the API in protobuf's JSON: bytes in base64, 64-bit numbers as
// text.

type stamp struct {
	Epoch   uint64 `json:"epoch,string"`
	Version uint64 `json:"version,string"`
}

func (s stamp) is(other verify.Stamp) bool {
	return s.Epoch == other.Epoch && s.Version == other.Version
}

type item struct {
	Kind     uint8  `json:"kind"`
	Envelope []byte `json:"envelope"`
}

// journal is a journal of an answer.
type journal struct {
	JSN        uint64  `json:"jsn,string"`
	Leaf       []byte  `json:"leaf"`
	Envelope   []byte  `json:"envelope"`
	OccultedBy *string `json:"occultedBy"`
}

// read decodes a message.
func read[T any](text []byte) (message T, err error) {
	err = json.Unmarshal(text, &message)
	return message, err
}

func written(message any) (string, error) {
	text, err := json.Marshal(message)
	return string(text), err
}

func ledgerID(id []byte) (verify.LedgerID, error) {
	if len(id) != len(verify.LedgerID{}) {
		return verify.LedgerID{}, errors.New("an id of a ledger has 16 bytes")
	}
	return verify.LedgerID(id), nil
}
