// Command immudb-drive puts load on immudb, through immudb's own client.
//
// A batch is one SetAll (or a Set for one record), which immudb fsyncs before it answers, by
// default. A read is a VerifiedGet of each key. `-verified` makes verified writes of batches of
// one.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"coppice.dev/loadtest/drive"
	"github.com/codenotary/immudb/pkg/api/schema"
	immudb "github.com/codenotary/immudb/pkg/client"
)

var (
	verified = flag.Bool("verified", false, "verify each write of one record")
	state    = flag.String("state", "", "directory for what clients remember of the ledger")
)

type client struct{ immudb immudb.ImmuClient }

func (client client) Write(ctx context.Context, keys, values [][]byte) error {
	if *verified && len(keys) == 1 {
		_, err := client.immudb.VerifiedSet(ctx, keys[0], values[0])
		return err
	}
	request := &schema.SetRequest{KVs: make([]*schema.KeyValue, len(keys))}
	for index := range keys {
		request.KVs[index] = &schema.KeyValue{Key: keys[index], Value: values[index]}
	}
	_, err := client.immudb.SetAll(ctx, request)
	return err
}

func (client client) Read(ctx context.Context, keys [][]byte) error {
	for _, key := range keys {
		if _, err := client.immudb.VerifiedGet(ctx, key); err != nil {
			return err
		}
	}
	return nil
}

func main() {
	drive.Main("immudb", func(ctx context.Context, options drive.Options, index int) (drive.Client, error) {
		host, text, err := net.SplitHostPort(options.Endpoints[0])
		if err != nil {
			return nil, err
		}
		port, err := strconv.Atoi(text)
		if err != nil {
			return nil, err
		}
		dir := filepath.Join(*state, fmt.Sprintf("client-%d", index))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
		connection := immudb.NewClient().WithOptions(immudb.DefaultOptions().WithAddress(host).WithPort(port).WithDir(dir))
		return client{connection}, connection.OpenSession(ctx, []byte("immudb"), []byte("immudb"), "defaultdb")
	})
}
