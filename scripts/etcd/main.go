// Command etcd is the etcd server. `go install` refuses the server's own module (it has replace
// directives), so this module pins it in its go.mod and calls its main function.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() {
	etcdmain.Main(os.Args)
}
