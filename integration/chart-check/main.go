// chart-check reads what `helm template` has rendered and says what is wrong with it, writes the
// reference of the chart's values, or reads a file for Nomad.
//
//	chart-check manifests < rendered.yaml
//	chart-check secret NAME KEY < rendered.yaml
//	chart-check mount CONTAINER PATH < rendered.yaml
//	chart-check limits CONTAINER < rendered.yaml
//	chart-check with-objects rendered.yaml helm template ... --is-upgrade --dry-run=server
//	chart-check nomad deploy/nomad/node.nomad.hcl
//	chart-check values deploy/chart/values.schema.json deploy/chart/values.yaml > docs/chart-values.md
package main

import (
	"fmt"
	"os"
)

func main() {
	var err error
	switch {
	case len(os.Args) == 2 && os.Args[1] == "manifests":
		err = checkManifests(os.Stdin, os.Stdout)
	case len(os.Args) == 4 && os.Args[1] == "secret":
		err = printSecret(os.Stdin, os.Args[2], os.Args[3], os.Stdout)
	case len(os.Args) == 4 && os.Args[1] == "mount":
		err = printMount(os.Stdin, os.Args[2], os.Args[3], os.Stdout)
	case len(os.Args) == 3 && os.Args[1] == "limits":
		err = printLimits(os.Stdin, os.Args[2], os.Stdout)
	case len(os.Args) >= 4 && os.Args[1] == "with-objects":
		err = runWithObjects(os.Args[2], os.Args[3:])
	case len(os.Args) == 3 && os.Args[1] == "nomad":
		err = printNomad(os.Args[2], os.Stdout)
	case len(os.Args) == 4 && os.Args[1] == "values":
		err = writeValues(os.Args[2], os.Args[3], os.Stdout)
	default:
		err = fmt.Errorf("usage: chart-check manifests | chart-check secret NAME KEY | chart-check mount CONTAINER PATH | chart-check limits CONTAINER | chart-check with-objects FILE COMMAND... | chart-check nomad FILE | chart-check values SCHEMA VALUES")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
