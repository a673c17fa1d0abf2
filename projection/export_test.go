package projection

// PushLayouts is for the tests outside the package, which alone can use testkit.
var PushLayouts = pushLayouts
