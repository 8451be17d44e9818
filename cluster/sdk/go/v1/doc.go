// Package coppicev1 has the messages and the service of a ledger's public API, as generated from
// proto/coppice/v1/ledger.proto. Package coppice is a client that verifies what it is told; use
// this package for calls that package coppice leaves out.
package coppicev1

//go:generate go -C ../tools run ./protogen ../../../../proto ../v1
