package coppice

import (
	"errors"

	"google.golang.org/grpc/encoding"
	// The codec that is wrapped below registers itself.
	_ "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

const (
	// answerBytesMax is the size of the largest answer: a proof file may have 64 MiB.
	answerBytesMax = 96 << 20
	// shortBytesMax is for calls with short answers, and listBytesMax for those that list replicas.
	shortBytesMax = 1 << 20
	listBytesMax  = 2 << 20
	// fieldsMax bounds the fields of one message. A message of many empty parts is short on the wire,
	// and a hundred times as large in memory.
	fieldsMax = 1 << 17
)

// bytesMax is the size of the largest answer to a call.
func bytesMax(call string) int {
	switch call {
	case "Head", "GetHeader", "OpenSession", "Stage", "Discard", "Pin", "Unpin", "TransferLeader", "VerifyJournal":
		return shortBytesMax
	case "Prune", "Rollback", "RotateKey", "Status", "ListPins", "ErasureStatus":
		return listBytesMax
	}
	return answerBytesMax
}

// boundedCodec is the codec of protobuf messages, with a bound on what a server may send.
type boundedCodec struct{}

func (boundedCodec) Name() string { return "proto" }

func (boundedCodec) Marshal(v any) (mem.BufferSlice, error) {
	return encoding.GetCodecV2("proto").Marshal(v)
}

func (boundedCodec) Unmarshal(data mem.BufferSlice, v any) error {
	buffer := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buffer.Free()
	if err := checkFields(buffer.ReadOnlyData()); err != nil {
		return err
	}
	return encoding.GetCodecV2("proto").Unmarshal(mem.BufferSlice{buffer}, v)
}

// checkFields counts the fields of a message before it is decoded.
func checkFields(message []byte) error {
	for fields := 0; len(message) > 0; fields++ {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return protowire.ParseError(n)
		}
		if fields == fieldsMax {
			return errors.New("coppice: a message has more parts than any that a ledger sends")
		}
		message = message[n:]
		if n = protowire.ConsumeFieldValue(number, kind, message); n < 0 {
			return protowire.ParseError(n)
		}
		message = message[n:]
	}
	return nil
}
