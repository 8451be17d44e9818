// Command immudb is the immudb server.
package main

import immudb "github.com/codenotary/immudb/cmd/immudb/command"

func main() {
	immudb.Execute()
}
