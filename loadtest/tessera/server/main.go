// Command tessera is a log of its own on Tessera's POSIX driver.
package main

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"

	"coppice.dev/loadtest/tessera/log"
)

func main() {
	directory := flag.String("dir", "", "directory of the log")
	key := flag.String("key", "", "file that the log's public key is written to")
	address := flag.String("listen", "", "where the log listens")
	flag.Parse()
	if err := serve(*directory, *key, *address); err != nil {
		fmt.Fprintln(os.Stderr, "tessera:", err)
		os.Exit(1)
	}
}

func serve(directory, key, address string) error {
	server, err := log.New(context.Background(), directory, log.Fast)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(key), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(key, []byte(server.Key), 0o644); err != nil {
		return err
	}
	return http.ListenAndServe(address, server)
}
